"""Which experts belong together: by their weights, by how a model's own gates use them, or by what they earn.

Each criterion says how far experts lie apart (K, K); Ward's hierarchical clustering makes groups of that, cut where M
groups are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from transformers import AutoTokenizer

from tanbr.errors import CheckpointError, InputError
from tanbr.lab.gates import heard
from tanbr.merge import Moe
from tanbr.merge.inspect import expert_gram
from tanbr.moe.families import model_class
from tanbr.moe.layer import MoeSite, TokenRouting, route
from tanbr.moe.writing import Progress, silent
from tanbr.router.groups import Groups
from tanbr.types import FloatArray, as_blend, as_reward

LEAST_LOAD = 0.05  # of the even share: an expert that no text uses still has a part in its group
LONGEST = 256  # tokens of a text that are read
FEWEST = 8  # texts from which profiles are compared
RIDGE = 1e-3  # of a blend's weight, squared and counted


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of experts, and what they were made of."""

    groups: Groups
    similarity: FloatArray  # (K, K)

    @property
    def within(self) -> float:
        """Mean similarity of two experts of a group; NaN where every group holds one."""
        return self._mean(same=True)

    @property
    def between(self) -> float:
        """Mean similarity of two experts of different groups; NaN where there is one group."""
        return self._mean(same=False)

    def _mean(self, *, same: bool) -> float:
        of = self.groups.of_expert
        pairs = ((of[:, None] == of[None]) == same) & ~np.eye(len(of), dtype=np.bool_)
        return float(self.similarity[pairs].mean()) if pairs.any() else float("nan")


def clustered(squared: FloatArray, *, into: int, loads: FloatArray | None = None, **about: str) -> Groups:
    """Cluster experts by squared distances (K, K) into M groups, each with the tree by which it was joined.

    Groups are in the order of their first experts, and of equal distances the first ones are joined first, so that
    the same distances always give the same groups.
    """
    check_into(into, len(squared))
    if not np.isfinite(squared).all():
        raise InputError("experts must lie at finite distances (got NaN or infinity); look at them with tanbr inspect")
    distances = np.sqrt(np.maximum(0.5 * (squared + squared.T), 0.0))
    np.fill_diagonal(distances, 0.0)
    joined = linkage(squareform(distances, checks=False), method="ward")
    labels = cut_tree(joined, n_clusters=into)[:, 0]
    groups = [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]
    return Groups.of(groups, loads=() if loads is None else loads.tolist(), **about)


def check_into(into: int, experts: int) -> None:
    """Refuse a number of groups that K experts cannot make."""
    if not 2 <= into <= experts:
        raise InputError(f"{experts} experts make 2 to {experts} groups (got {into}); choose --into among these")


# --- by weights: experts whose weights lie near each other, over all sites ------------------------------------------


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
        gram = expert_gram(moe, site, centred=True)
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


# --- by routing: experts that a checkpoint's own gates use together -------------------------------------------------


def by_routing(moe: Moe, texts: Sequence[str], *, into: int, progress: Progress = silent) -> Grouping:
    """Cluster the experts of a checkpoint into M groups by how its gates use them on texts; each site counts alike.

    For every text and site, the gate's mean share of each expert is its profile. Experts whose profiles rise and fall
    together over the texts are used together. The mean share is the expert's load, by which experts share a group's
    weight. This needs the un-merged model in memory, and gates that were trained.
    """
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
    return np.asarray(np.maximum(profiles.mean(axis=(0, 1)), LEAST_LOAD / profiles.shape[2]))


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
    model = model_class(moe.config["architectures"][0]).from_pretrained(moe.path).eval()
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


# --- by reward: experts that earn alike on every task, from the rewards of blends -----------------------------------


def by_reward(
    blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None, *, into: int, model_sha256: str = ""
) -> Grouping:
    """Cluster the experts by the rewards (n, V), NaN where unseen, of blends (n, K) with counts (n, V) behind them.

    The similarity of two experts is 1 minus the root mean square difference of what they earn.
    """
    earned = effects(blends, rewards, counts)
    check_into(into, len(earned))
    squared = ((earned[:, None] - earned[None]) ** 2).sum(axis=2)
    groups = clustered(squared, into=into, found_by="reward", model_sha256=model_sha256)
    return Grouping(groups, 1.0 - np.sqrt(squared / earned.shape[1]))


def effects(blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None) -> FloatArray:
    """What every expert earns on every task (K, V), by ridge regression of the rewards on the blends' weights.

    For a survey, whose first blends are the experts alone, that is nearly what each earned by itself.
    """
    x, r = np.array(blends, dtype=np.float64), np.array(rewards, dtype=np.float64)
    weight = np.where(np.isnan(r), 0.0, 1.0) if counts is None else np.nan_to_num(np.array(counts, dtype=np.float64))
    if x.ndim != 2 or r.ndim != 2 or len(x) != len(r) or weight.shape != r.shape or not len(x):
        raise InputError(f"blends, rewards and counts must be tables of equal length (got {x.shape} and {r.shape})")
    for row in x:
        as_blend(row, experts=x.shape[1])
    for row in r:
        as_reward(row, tasks=r.shape[1])
    weight = np.where(np.isnan(r), 0.0, weight)
    behind = (x[:, :, None] * weight[:, None]).sum(axis=0)  # (K, V) requests that speak for each expert
    if (behind <= 0).any():
        expert, task = (int(place) for place in np.argwhere(behind <= 0)[0])
        raise InputError(
            f"every expert must be in a rewarded blend for every task (got none with expert {expert} for task {task}); "
            "survey every expert alone, or group by weights"
        )
    earned = np.empty((x.shape[1], r.shape[1]))
    for v in range(r.shape[1]):
        w, centre = weight[:, v], float(np.average(np.nan_to_num(r[:, v]), weights=weight[:, v]))
        inner = (x * w[:, None]).T @ x + RIDGE * w.mean() * np.eye(x.shape[1])
        earned[:, v] = centre + np.linalg.solve(inner, (x * w[:, None]).T @ np.nan_to_num(r[:, v] - centre))
    return earned


def draw(found: Grouping, path: Path) -> None:
    """Draw the similarities, experts ordered by group, with a frame around every group."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups, similarity = found.groups, found.similarity
    order = [expert for members in groups.members for expert in members]
    plot, ax = plt.subplots(figsize=(6.2, 5.2), layout="constrained")
    off = similarity[~np.eye(len(similarity), dtype=bool)]
    image = ax.imshow(similarity[np.ix_(order, order)], vmin=off.min(), vmax=off.max(), cmap="viridis")
    start = -0.5
    for members in groups.members:
        ax.add_patch(plt.Rectangle((start, start), len(members), len(members), fill=False, color="white", lw=1.2))
        start += len(members)
    title = f"{groups.experts} experts in {len(groups)} groups, by {groups.found_by}"
    ax.set(title=title, xlabel="experts, ordered by group", ylabel="experts, ordered by group")
    ax.title.set_fontsize(10)
    plot.colorbar(image, ax=ax, label="similarity")
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.savefig(path, dpi=120)
    plt.close(plot)
