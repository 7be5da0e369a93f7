"""Groups of experts that a checkpoint's own gates use together, and how much each is used.

The un-merged model reads some texts. For every text and site, the gate's mean share of each expert is its profile;
experts whose profiles rise and fall together over the texts are used together, be it by the same tokens or by others of
the same texts. The mean share is the expert's load, by which experts share a group's weight.

This needs the un-merged model in memory, and gates that were trained.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer

from tanbr.errors import CheckpointError, InputError
from tanbr.grouping.cluster import Grouping, check_into, clustered
from tanbr.merge import Moe
from tanbr.moe.families import CLASSES
from tanbr.moe.gates import heard
from tanbr.moe.layer import MoeSite, TokenRouting, route
from tanbr.moe.writing import Progress, silent
from tanbr.types import FloatArray

LEAST_LOAD = 0.05  # of the even share: an expert that no text uses still has a part in its group
LONGEST = 256  # tokens of a text that are read
FEWEST = 8  # texts from which profiles are compared


def by_routing(moe: Moe, texts: Sequence[str], *, into: int, progress: Progress = silent) -> Grouping:
    """Cluster the experts of a checkpoint into M groups by how its gates use them on texts; each site counts alike."""
    check_into(into, moe.num_experts)
    profiles = gate_profiles(moe, texts, progress=progress)
    alike = correlations(profiles)
    about = {"found_by": "routing", "model_sha256": moe.fingerprint}
    return Grouping(clustered(2.0 - 2.0 * alike, into=into, loads=loads(profiles), **about), alike)


def correlations(profiles: FloatArray) -> FloatArray:
    """Mean over sites of the correlation (K, K) of the experts' profiles (sites, texts, K) over the texts."""
    moved = profiles - profiles.mean(axis=1, keepdims=True)
    norms = np.sqrt((moved**2).sum(axis=1, keepdims=True))
    moved = np.divide(moved, norms, out=np.zeros_like(moved), where=norms > 1e-12)
    return np.asarray(np.einsum("stk,stj->kj", moved, moved) / len(profiles))


def loads(profiles: FloatArray) -> FloatArray:
    """Mean share of every expert (K,) over sites and texts, but no less than a part of the even one."""
    mean = profiles.mean(axis=(0, 1))
    return np.asarray(np.maximum(mean, LEAST_LOAD / profiles.shape[2]))


@torch.inference_mode()
def gate_profiles(moe: Moe, texts: Sequence[str], *, progress: Progress = silent) -> FloatArray:
    """Mean share that each site's gate gives each expert on each text: (sites, texts, K)."""
    if len(texts) < FEWEST:
        raise InputError(f"routing is compared over {FEWEST} texts or more (got {len(texts)}); give more")
    model, tokenizer = _whole(moe), AutoTokenizer.from_pretrained(moe.path)
    rows = []
    for done, text in enumerate(texts):
        progress(done, len(texts))
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        rows.append([site.float().softmax(dim=-1).mean(dim=0).numpy() for site in _logits(model, inputs)])
    progress(len(texts), len(texts))
    profiles = np.array(rows, dtype=np.float64).transpose(1, 0, 2)
    if profiles.shape[2] != moe.num_experts or not np.isfinite(profiles).all():
        raise CheckpointError(
            f"the gates of {moe.path} do not choose among {moe.num_experts} experts; group by weights"
        )
    return profiles


def _whole(moe: Moe) -> Any:
    """Load the un-merged model."""
    name = moe.config["architectures"][0]
    model = (CLASSES.get(name) or getattr(transformers, name)).from_pretrained(moe.path).eval()
    sites = _own_sites(model)
    if any(site.gate is None for site in sites):
        raise CheckpointError(f"{moe.path} has no gates of its own (it routes by task); group by weights or reward")
    if sites:
        route(model, TokenRouting(1))
    return model


def _own_sites(model: Any) -> list[MoeSite]:
    """List the sites of a model of this project; none for a stock one."""
    return [module for module in model.modules() if isinstance(module, MoeSite)]


def _logits(model: Any, inputs: Any) -> list[torch.Tensor]:
    """Logits (tokens, K) of every site's gate for one text."""
    if _own_sites(model):
        with heard(model) as said:
            model(**inputs)
        return [one.logits.flatten(0, -2) for one in said]
    found = getattr(model(**inputs, output_router_logits=True), "router_logits", None)
    if not found:
        raise CheckpointError(f"{model.config.model_type} does not say what its gates choose; group by weights")
    return [one.flatten(0, -2) for one in found]
