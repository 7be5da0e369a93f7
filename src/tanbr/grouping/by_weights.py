"""Groups of experts whose weights lie near each other, over all sites: a blend has one weight an expert for all.

Experts are read block by block, the same block of all experts at a time, so that they are never all in memory.
"""

import numpy as np
import torch

from tanbr.errors import CheckpointError
from tanbr.grouping.cluster import Grouping, check_into, clustered
from tanbr.merge import Moe
from tanbr.moe.family import Piece, Site
from tanbr.moe.writing import Progress, silent
from tanbr.types import FloatArray

BLOCK = 1 << 22  # numbers that are in memory at a time, of all experts together
GATES = frozenset({"router", "router_bias"})


def by_weights(moe: Moe, *, into: int, progress: Progress = silent) -> Grouping:
    """Cluster the experts of a checkpoint into M groups; each site counts alike."""
    check_into(into, moe.num_experts)
    squared, similarity = distances(moe, progress=progress)
    groups = clustered(squared, into=into, found_by="weights", model_sha256=moe.fingerprint)
    return Grouping(groups, similarity)


def distances(moe: Moe, *, progress: Progress = silent) -> tuple[FloatArray, FloatArray]:
    """Squared distances (K, K) of the experts, the mean over sites of what is 2 on average at each, and similarities.

    The similarity is the mean cosine of the experts' differences from their mean.
    """
    moe.check(None)
    K = moe.num_experts
    squared, similarity = np.zeros((2, K, K))
    for done, site in enumerate(moe.sites):
        progress(done, len(moe.sites))
        gram = centred_gram(moe, site)
        own = np.diag(gram)
        scale = float(own.mean())
        if not np.isfinite(gram).all():
            raise CheckpointError(f"{site.name} of {moe.path} holds values too large to compare; look at its weights")
        if scale > 0:  # experts that are all the same say nothing
            squared += (own[:, None] + own[None] - 2 * gram) / scale
            similarity += gram / np.maximum(np.sqrt(np.outer(own, own)), 1e-30)
        moe.release()
    progress(len(moe.sites), len(moe.sites))
    return np.maximum(squared, 0.0) / len(moe.sites), similarity / len(moe.sites)


def centred_gram(moe: Moe, site: Site) -> FloatArray:
    """Inner products (K, K) of the experts' differences from their mean; subtracted first, so that little is lost."""
    total = torch.zeros(site.experts, site.experts, dtype=torch.float64)
    step = max(1, BLOCK // site.experts)
    for part in site.parts:
        if part.role in GATES:
            continue
        piece, size = Piece(part.target, part.shape, part.blocks), torch.Size(part.shape).numel()
        for start in range(0, size, step):
            rows = moe.experts.rows(piece, range(site.experts), slice(start, min(start + step, size)))
            rows = rows - rows.mean(dim=0)
            total += (rows @ rows.T).double()
    gram: FloatArray = total.numpy()
    return gram
