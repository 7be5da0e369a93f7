"""From how far experts lie apart to groups of them: Ward's hierarchical clustering, cut where M groups are left."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from tanbr.errors import InputError
from tanbr.router.groups import Groups
from tanbr.types import FloatArray


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
    """Cluster experts by squared distances (K, K) into M groups.

    Groups are in the order of their first experts, and of equal distances the first ones are joined first, so that
    the same distances always give the same groups.
    """
    experts = len(squared)
    check_into(into, experts)
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
