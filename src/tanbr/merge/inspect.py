"""Will these experts merge? Whether they came from one base, or hold the same hidden units in one order; a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tanbr.merge.moe import Moe
from tanbr.moe.family import Site
from tanbr.moe.writing import Progress, silent

Verdict: TypeAlias = Literal["merge", "do not merge"]

ALIKE = 0.5  # cosine from which two experts count as descended from one: independent ones are near 0, fine-tuned near 1
GLANCED_SITES = 3


@dataclass(frozen=True)
class Inspection:
    """What was found: cosines with the base where one is known, hidden units elsewhere."""

    verdict: Verdict
    reason: str
    kinship: dict[str, float]  # expert → cosine of its matrices with the base's
    sites: dict[str, float]  # site → cosine of expert 0's hidden units with the same units of up to three others


def inspect(moe: Moe, *, progress: Progress = silent) -> Inspection:
    """Report on the mergeability of a checkpoint's experts, and look through all of them for NaN."""
    moe.check(None)
    return _judged(moe, moe.sites, progress)


def glance(moe: Moe) -> Inspection:
    """Judge by a few sites: what `inspect` would say, without reading all the weights."""
    chosen = sorted({round(place) for place in np.linspace(0, len(moe.sites) - 1, GLANCED_SITES)})
    return _judged(moe, [moe.sites[at] for at in chosen], silent)


def _judged(moe: Moe, sites: Sequence[Site], progress: Progress) -> Inspection:
    kin = moe.source.kinship()
    if kin is not None:
        kinship = dict(zip(moe.source.names, kin, strict=True))
        return Inspection(*_judge_descent(kinship), kinship, {})
    if not any(site.parts for site in sites):
        return Inspection("merge", "the experts differ only in what their base lacks", {}, {})
    found: dict[str, float] = {}
    for done, site in enumerate(sites, 1):
        found[site.name] = _unit_cosine(moe, site)
        progress(done, len(sites))
    return Inspection(*_judge_units(float(np.mean(list(found.values())))), {}, found)


def _unit_cosine(moe: Moe, site: Site) -> float:
    first = _unit_weights(moe, site, 0)
    others = [_unit_weights(moe, site, expert) for expert in range(1, min(moe.num_experts, 4))]
    return float(np.mean([float(torch.cosine_similarity(first, one, dim=1).mean()) for one in others])) if others else 1


def _unit_weights(moe: Moe, site: Site, expert: int) -> Tensor:
    """Collect the weights of every hidden unit, (units, features); each part counts alike."""
    rows = []
    for part in site.parts.values():
        if part.unit_axis is not None:  # gate and up may be interleaved
            block = moe.source.one(part, expert).view(part.shape).float().movedim(part.unit_axis, 0)
            features = block.reshape(site.parts["down"].shape[site.parts["down"].unit_axis or 0], -1)
            rows.append(features / features.norm().clamp_min(1e-12))
    return torch.cat(rows, dim=1)


def _judge_units(cosine: float) -> tuple[Verdict, str]:
    """Judge experts by how alike their hidden units are."""
    if cosine >= ALIKE:
        return "merge", f"the experts share an ancestor (their hidden units have cosine {cosine:.2f})"
    return "do not merge", (
        f"the experts share no ancestor that can be seen (their hidden units have cosine {cosine:.2f}): "
        "an average of them is none of them; serve one expert"
    )


def _judge_descent(kinship: dict[str, float]) -> tuple[Verdict, str]:
    """Judge experts by their cosines with their base."""
    odd = [f"{name} (cosine {cosine:.2f})" for name, cosine in kinship.items() if not cosine >= ALIKE]
    if odd:
        return "do not merge", f"{', '.join(odd)} did not come from the base that the experts should share"
    least = min(kinship.values())
    return "merge", f"all experts came from the base (their matrices have cosine {least:.2f} or more with its)"
