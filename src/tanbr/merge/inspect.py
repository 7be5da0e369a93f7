"""Will these experts merge? Whether they came from one base, or hold the same hidden units; a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import normalize

from tanbr.merge.align import unit_count, unit_weights
from tanbr.merge.moe import Moe
from tanbr.moe.family import Site
from tanbr.moe.writing import Progress, silent

Verdict: TypeAlias = Literal["merge", "align first", "do not merge"]

ALIKE = 0.5  # cosine from which two experts count as descended from one: independent ones are near 0, fine-tuned near 1
GLANCED_SITES = 3
SAMPLED_UNITS = 256


@dataclass(frozen=True)
class UnitMatch:
    """How a sample of expert 0's hidden units at a site compares with the units of up to three other experts."""

    site: str
    in_place: float  # mean cosine of unit u with unit u of the others
    best: float  # … with the most similar unit of the others
    moved: float  # share of units whose most similar one is another


@dataclass(frozen=True)
class Inspection:
    """What was found: cosines with the base where one is known, hidden units elsewhere."""

    verdict: Verdict
    reason: str
    kinship: dict[str, float]  # expert → cosine of its matrices with the base's
    sites: tuple[UnitMatch, ...]


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
        return Inspection(*_judge_descent(kinship), kinship, ())
    matches = []
    for done, site in enumerate(sites, 1):
        matches.append(_unit_match(moe, site))
        progress(done, len(sites))
    return Inspection(*_judge_units(matches), {}, tuple(matches))


def _unit_match(moe: Moe, site: Site) -> UnitMatch:
    units = unit_count(site)
    chosen = torch.linspace(0, units - 1, min(units, SAMPLED_UNITS)).long()
    first = normalize(unit_weights(moe, site, 0)[chosen], dim=1)
    found = []
    for expert in range(1, min(site.experts, 4)):
        cosines = first @ normalize(unit_weights(moe, site, expert), dim=1).T  # (sample, units)
        best, own = cosines.max(dim=1).values, cosines[torch.arange(len(chosen)), chosen]
        found.append([float(values.float().mean()) for values in (own, best, own < best)])
    return UnitMatch(site.name, *(np.mean(found, axis=0).tolist() if found else (1.0, 1.0, 0.0)))


def _judge_units(matches: Sequence[UnitMatch]) -> tuple[Verdict, str]:
    """Judge experts by how alike their hidden units are."""
    same = float(np.mean([match.in_place for match in matches]))
    best = float(np.mean([match.best for match in matches]))
    if same >= ALIKE:
        return "merge", f"the experts share an ancestor (their hidden units have cosine {same:.2f} in place)"
    if best >= ALIKE:
        return "align first", (
            f"the experts hold the same hidden units in another order (cosine {same:.2f} in place, "
            f"{best:.2f} at best); `tanbr merge --mode align` puts them in one"
        )
    return "do not merge", (
        f"the experts share no ancestor that can be seen (cosine {same:.2f} in place, {best:.2f} at best): "
        "an average of them is none of them; serve one expert"
    )


def _judge_descent(kinship: dict[str, float]) -> tuple[Verdict, str]:
    """Judge experts by their cosines with their base."""
    odd = [f"{name} (cosine {cosine:.2f})" for name, cosine in kinship.items() if not cosine >= ALIKE]
    if odd:
        return "do not merge", f"{', '.join(odd)} did not come from the base that the experts should share"
    least = min(kinship.values())
    return "merge", f"all experts came from the base (their matrices have cosine {least:.2f} or more with its)"
