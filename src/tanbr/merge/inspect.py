"""Will these experts merge? How far apart they are at every site, by the first rows of each matrix, and a verdict."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from tanbr.merge.moe import Moe
from tanbr.moe.family import Piece, Site
from tanbr.moe.writing import Progress, silent
from tanbr.types import FloatArray

Verdict: TypeAlias = Literal["merge", "do not merge"]

ALIKE = 0.5  # cosine from which two experts count as descended from one: independent ones are near 0, fine-tuned near 1
ROWS = 256  # of a matrix, that tell how its experts relate
GLANCED_SITES = 3


@dataclass(frozen=True, eq=False)
class SiteKinship:
    """How the experts of one site relate; arrays are (K, K)."""

    site: str
    distance: FloatArray  # ‖w_i − w_j‖ relative to the root mean square norm of the two
    cosine: FloatArray  # between the experts' weights
    task_cosine: FloatArray  # between their differences from their mean
    descent: FloatArray | None  # (K,) cosine between the experts' weights and their base's; None where it is not known


@dataclass(frozen=True)
class Inspection:
    """What `tanbr inspect` found."""

    family: str
    experts: int
    sites: tuple[SiteKinship, ...]
    verdict: Verdict
    reason: str


def inspect(moe: Moe, *, progress: Progress = silent) -> Inspection:
    """Report on the mergeability of a checkpoint."""
    moe.check(None)
    sites = []
    for done, site in enumerate(moe.sites):
        progress(done, len(moe.sites))
        sites.append(_kinship(moe, site))
    progress(len(moe.sites), len(moe.sites))
    return Inspection(moe.family.model_type, moe.num_experts, tuple(sites), *_judged(moe, sites))


def glance(moe: Moe) -> tuple[Verdict, str]:
    """Judge by a few sites."""
    chosen = sorted({round(place) for place in np.linspace(0, len(moe.sites) - 1, GLANCED_SITES)})
    return _judged(moe, [_kinship(moe, moe.sites[at]) for at in chosen])


def _kinship(moe: Moe, site: Site) -> SiteKinship:
    K = moe.num_experts
    gram, descent = torch.zeros(K, K, dtype=torch.float64), []
    parts = [part for part in site.parts if part.role not in ("router", "router_bias")]
    for part in [part for part in parts if len(part.shape) > 1] or parts:  # norms and biases are alike in all models
        piece, first = Piece(part.target, part.shape, part.blocks), slice(0, ROWS * math.prod(part.shape[1:]))
        rows = moe.source.rows(piece, range(K), first)
        gram += (rows @ rows.T).double()
        origin = moe.source.ancestor(piece)
        if origin is not None:
            descent.append(torch.cosine_similarity(rows, origin[first].to(rows)[None], dim=1).numpy())
    products = np.asarray(gram.numpy())
    squares = np.diag(products)
    both = squares[:, None] + squares[None]
    centre = np.eye(K) - 1 / K
    task, cosine = centre @ products @ centre, _cosines(products)
    return SiteKinship(
        site.name,
        distance=np.sqrt((both - 2 * products).clip(0)) / np.sqrt(both / 2).clip(1e-30),
        cosine=cosine,
        task_cosine=_cosines(task) if np.diag(task).max() > 1e-12 * squares.max() else np.eye(K),
        descent=np.mean(descent, axis=0) if descent else None,
    )


def _cosines(products: FloatArray) -> FloatArray:
    """Divide inner products (K, K) by the norms."""
    norms = np.sqrt(np.diag(products).clip(1e-30))
    return products / np.outer(norms, norms)


def _judged(moe: Moe, sites: list[SiteKinship]) -> tuple[Verdict, str]:
    """Judge experts by their cosines with their base; where none is known, with one another."""
    known = [site.descent for site in sites if site.descent is not None]
    if known:
        kin = np.mean(known, axis=0)  # (K,)
        odd = [f"{name} (cosine {x:.2f})" for name, x in zip(moe.source.names, kin, strict=True) if not x >= ALIKE]
        if odd:
            return "do not merge", f"{', '.join(odd)} did not come from the base that the experts should share"
        return "merge", f"all experts came from the base (their matrices have cosine {kin.min():.2f} or more with its)"
    pairs = ~np.eye(moe.num_experts, dtype=bool)
    alike = float(np.mean([site.cosine[pairs] for site in sites])) if pairs.any() else 1.0
    if alike >= ALIKE:
        return "merge", f"the experts share an ancestor (their matrices have cosine {alike:.2f})"
    return "do not merge", (
        f"the experts share no ancestor that can be seen (their matrices have cosine {alike:.2f}): "
        "an average of them is none of them; serve one expert"
    )
