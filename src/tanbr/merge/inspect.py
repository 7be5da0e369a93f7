"""Will these experts merge? Distances, task vectors, order of hidden units, loss on the line between two; a verdict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tanbr.errors import InputError
from tanbr.merge.align import unit_count, unit_weights
from tanbr.merge.moe import Moe
from tanbr.moe.family import Piece, Site
from tanbr.moe.writing import Progress, silent
from tanbr.types import FloatArray, to_jsonable

Verdict: TypeAlias = Literal["merge", "align first", "do not merge"]

ALIKE = 0.5  # cosine from which two experts count as descended from one: independent ones are near 0, fine-tuned near 1
BARRIER = 0.1  # relative rise of the loss half-way that a merge may have
SAMPLED_UNITS = 256
BLOCK = 1 << 22  # numbers that are in memory at a time, of all experts together


@dataclass(frozen=True, eq=False)
class SiteKinship:
    """How the experts of one site relate; arrays are (K, K)."""

    site: str
    distance: FloatArray  # ‖w_i − w_j‖ relative to the root mean square norm of the two
    cosine: FloatArray  # between the experts' weights
    task_cosine: FloatArray  # between their differences from their mean
    unit_cosine: float  # mean cosine of hidden unit u of expert 0 with unit u of the others
    best_unit_cosine: float  # … with the most similar unit of the others
    mismatch: float  # share of units whose most similar one is another


@dataclass(frozen=True)
class LossLine:
    """Mean loss of merges on the way from one expert to another."""

    first: int
    second: int
    at: tuple[float, ...]
    loss: tuple[float, ...]

    @property
    def barrier(self) -> float:
        """The largest rise above the straight line between the ends, relative to their mean."""
        ends = np.interp(self.at, (0, 1), (self.loss[0], self.loss[-1]))
        return float((np.asarray(self.loss) - ends).max() / max(np.mean((self.loss[0], self.loss[-1])), 1e-12))


@dataclass(frozen=True)
class Inspection:
    """What `tanbr inspect` found."""

    family: str
    experts: int
    sites: tuple[SiteKinship, ...]
    lines: tuple[LossLine, ...]
    verdict: Verdict
    reason: str
    note: str

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON can hold it."""
        found: dict[str, Any] = to_jsonable(asdict(self))
        return found | {"lines": [asdict(line) | {"barrier": line.barrier} for line in self.lines]}


def inspect(moe: Moe, *, batches: Sequence[Mapping[str, Tensor]] = (), progress: Progress = silent) -> Inspection:
    """Report on the mergeability of a checkpoint; `batches` of the dense model's inputs with labels add losses."""
    moe.check(None)
    reports = []
    for done, site in enumerate(moe.sites):
        progress(done, len(moe.sites))
        reports.append(_site_kinship(moe, site))
    progress(len(moe.sites), len(moe.sites))
    lines = tuple(loss_line(moe, 0, k, batches) for k in range(1, min(moe.num_experts, 4))) if batches else ()
    kin = moe.source.kinship()
    verdict, reason = _judge(reports, lines) if kin is None else _judge_descent(kin, moe.source.names, lines)
    return Inspection(moe.family.model_type, moe.num_experts, tuple(reports), lines, verdict, reason, moe.family.note)


def glance(moe: Moe, *, sites: int = 3) -> tuple[Verdict, str]:
    """Judge by the hidden units of a few sites: what `inspect` would say, without reading all the weights."""
    kin = moe.source.kinship()
    if kin is not None:
        return _judge_descent(kin, moe.source.names, ())
    chosen = sorted({round(place) for place in np.linspace(0, len(moe.sites) - 1, sites)})
    none = np.zeros((0, 0))
    seen = [SiteKinship(moe.sites[at].name, none, none, none, *_units(moe, moe.sites[at])) for at in chosen]
    return _judge(seen, ())


def _site_kinship(moe: Moe, site: Site) -> SiteKinship:
    gram = expert_gram(moe, site)
    K = len(gram)
    norms = np.sqrt(np.diag(gram).clip(1e-30))
    squared = np.diag(gram)[:, None] + np.diag(gram)[None] - 2 * gram
    scale = np.sqrt((np.diag(gram)[:, None] + np.diag(gram)[None]) / 2).clip(1e-30)
    centre = np.eye(K) - 1 / K
    task = centre @ gram @ centre
    task_norms = np.sqrt(np.diag(task).clip(1e-30))
    cosine = gram / np.outer(norms, norms)
    same, best, mismatch = _units(moe, site) if site.part("down") else (*[float(cosine[0, 1:].mean())] * 2, 0.0)
    return SiteKinship(
        site.name,
        distance=np.sqrt(squared.clip(0)) / scale,
        cosine=cosine,
        task_cosine=task / np.outer(task_norms, task_norms) if task_norms.max() > 1e-6 * norms.max() else np.eye(K),
        unit_cosine=same,
        best_unit_cosine=best,
        mismatch=mismatch,
    )


def expert_gram(moe: Moe, site: Site, *, centred: bool = False) -> FloatArray:
    """Inner products (K, K) of the experts' weights at a site, or of their differences from their mean.

    Experts are read block by block, the same block of all experts at a time, so that they are never all in memory.
    """
    total = torch.zeros(site.experts, site.experts, dtype=torch.float64)
    step = max(1, BLOCK // site.experts)
    for part in site.parts:
        if part.role in ("router", "router_bias"):
            continue
        piece, size = Piece(part.target, part.shape, part.blocks), torch.Size(part.shape).numel()
        for start in range(0, size, step):
            rows = moe.source.rows(piece, range(site.experts), slice(start, min(start + step, size)))
            if centred:  # subtracted first, so that little is lost to rounding
                rows = rows - rows.mean(dim=0)
            total += (rows @ rows.T).double()
    gram: FloatArray = total.numpy()
    return gram


def _units(moe: Moe, site: Site) -> tuple[float, float, float]:
    """Compare a sample of expert 0's hidden units with all units of up to three other experts."""
    units = unit_count(site)
    chosen = torch.linspace(0, units - 1, min(units, SAMPLED_UNITS)).long()
    first = torch.nn.functional.normalize(unit_weights(moe, site, 0)[chosen], dim=1)
    same, best, moved = [], [], []
    for expert in range(1, min(site.experts, 4)):
        cosines = first @ torch.nn.functional.normalize(unit_weights(moe, site, expert), dim=1).T  # (sample, units)
        highest = cosines.max(dim=1)
        own = cosines[torch.arange(len(chosen)), chosen]
        same.append(float(own.mean()))
        best.append(float(highest.values.mean()))
        moved.append(float((own < highest.values).float().mean()))
    return (float(np.mean(same)), float(np.mean(best)), float(np.mean(moved))) if same else (1.0, 1.0, 0.0)


@torch.inference_mode()
def loss_line(
    moe: Moe, first: int, second: int, batches: Iterable[Mapping[str, Tensor]], *, points: int = 5
) -> LossLine:
    """Measure the mean loss of merges between two experts."""
    data = list(batches)
    model = moe.dense()
    at, losses = np.linspace(0, 1, points), []
    for share in at:
        blend = np.zeros(moe.num_experts)
        blend[first], blend[second] = 1 - share, share
        moe.merge_into(model, blend)
        values = [model(**batch).loss for batch in data]
        if any(value is None for value in values):
            raise InputError("a loss needs labels: every batch must hold `labels` beside the model's inputs")
        losses.append(float(torch.stack(values).mean()))
    return LossLine(first, second, tuple(at.tolist()), tuple(losses))


def _judge(sites: Sequence[SiteKinship], lines: Sequence[LossLine]) -> tuple[Verdict, str]:
    """Judge experts by how alike their hidden units are."""
    same, best = (float(np.mean([getattr(site, key) for site in sites])) for key in ("unit_cosine", "best_unit_cosine"))
    if same >= ALIKE:
        origin = f"the experts share an ancestor (a hidden unit and its namesake in another have cosine {same:.2f})"
        return _unless_the_loss_rises(origin, lines)
    if best >= ALIKE:
        return "align first", (
            f"the experts hold the same hidden units in another order (cosine {same:.2f} in place, "
            f"{best:.2f} at best); `tanbr align` puts them in one"
        )
    return "do not merge", (
        f"the experts share no ancestor that can be seen (cosine {same:.2f} in place, {best:.2f} at best): "
        "an average of them is none of them; serve one expert"
    )


def _judge_descent(kin: Sequence[float], names: Sequence[str], lines: Sequence[LossLine]) -> tuple[Verdict, str]:
    """Judge experts whose base is known, by their cosines (K,) with it."""
    odd = [f"{name} (cosine {cosine:.2f})" for name, cosine in zip(names, kin, strict=True) if not cosine >= ALIKE]
    if odd:
        return "do not merge", f"{', '.join(odd)} did not come from the base that the experts should share"
    origin = f"all experts came from the base (their matrices have cosine {min(kin):.2f} or more with its)"
    return _unless_the_loss_rises(origin, lines)


def _unless_the_loss_rises(origin: str, lines: Sequence[LossLine]) -> tuple[Verdict, str]:
    barrier = max((line.barrier for line in lines), default=0.0)
    if barrier > BARRIER:
        return "do not merge", f"{origin}, but the loss rises by {barrier:.0%} between them"
    return "merge", origin
