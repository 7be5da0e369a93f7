"""Will these experts merge? Distances, task vectors, the order of hidden units; a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import normalize

from tanbr.merge.align import unit_count, unit_weights
from tanbr.merge.moe import Moe
from tanbr.moe.family import Piece, Site
from tanbr.moe.writing import Progress, silent
from tanbr.types import FloatArray

Verdict: TypeAlias = Literal["merge", "align first", "do not merge"]

ALIKE = 0.5  # cosine from which two experts count as descended from one: independent ones are near 0, fine-tuned near 1
GLANCED_SITES = 3
SAMPLED_UNITS = 256
BLOCK = 1 << 22  # numbers that are in memory at a time, of all experts together


@dataclass(frozen=True)
class UnitMatch:
    """How a sample of expert 0's hidden units compares with the units of up to three other experts."""

    in_place: float  # mean cosine of unit u with unit u of the others
    best: float  # … with the most similar unit of the others
    moved: float  # share of units whose most similar one is another


@dataclass(frozen=True, eq=False)
class SiteKinship:
    """How the experts of one site relate; arrays are (K, K)."""

    site: str
    distance: FloatArray  # ‖w_i − w_j‖ relative to the root mean square norm of the two
    cosine: FloatArray  # between the experts' weights
    task_cosine: FloatArray  # between their differences from their mean
    units: UnitMatch


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
        sites.append(_site_kinship(moe, site))
    progress(len(moe.sites), len(moe.sites))
    verdict, reason = _judge_descent(moe) or _judge_units([site.units for site in sites])
    return Inspection(moe.family.model_type, moe.num_experts, tuple(sites), verdict, reason)


def glance(moe: Moe) -> tuple[Verdict, str]:
    """Judge by the hidden units of a few sites: what `inspect` would say, without reading all the weights."""
    chosen = sorted({round(place) for place in np.linspace(0, len(moe.sites) - 1, GLANCED_SITES)})
    return _judge_descent(moe) or _judge_units([_unit_match(moe, moe.sites[at]) for at in chosen])


def _site_kinship(moe: Moe, site: Site) -> SiteKinship:
    gram = expert_gram(moe, site)
    K, squares = len(gram), np.diag(gram)
    norms = np.sqrt(squares.clip(1e-30))
    both = squares[:, None] + squares[None]
    centre = np.eye(K) - 1 / K
    task = centre @ gram @ centre
    task_norms = np.sqrt(np.diag(task).clip(1e-30))
    cosine = gram / np.outer(norms, norms)
    mean = float(cosine[0, 1:].mean())
    return SiteKinship(
        site.name,
        distance=np.sqrt((both - 2 * gram).clip(0)) / np.sqrt(both / 2).clip(1e-30),
        cosine=cosine,
        task_cosine=task / np.outer(task_norms, task_norms) if task_norms.max() > 1e-6 * norms.max() else np.eye(K),
        units=_unit_match(moe, site) if site.part("down") else UnitMatch(mean, mean, 0.0),
    )


def expert_gram(moe: Moe, site: Site) -> FloatArray:
    """Inner products (K, K) of the experts' weights at a site, of which one block of each is in memory at a time."""
    total = torch.zeros(site.experts, site.experts, dtype=torch.float64)
    step = max(1, BLOCK // site.experts)
    for part in (part for part in site.parts if part.role not in ("router", "router_bias")):
        piece, size = Piece(part.target, part.shape, part.blocks), math.prod(part.shape)
        for start in range(0, size, step):
            rows = moe.source.rows(piece, range(site.experts), slice(start, min(start + step, size)))
            total += (rows @ rows.T).double()
    return np.asarray(total.numpy())


def _unit_match(moe: Moe, site: Site) -> UnitMatch:
    units = unit_count(site)
    chosen = torch.linspace(0, units - 1, min(units, SAMPLED_UNITS)).long()
    first = normalize(unit_weights(moe, site, 0)[chosen], dim=1)
    found = []
    for expert in range(1, min(site.experts, 4)):
        cosines = first @ normalize(unit_weights(moe, site, expert), dim=1).T  # (sample, units)
        best, own = cosines.max(dim=1).values, cosines[torch.arange(len(chosen)), chosen]
        found.append([float(values.float().mean()) for values in (own, best, own < best)])
    return UnitMatch(*np.mean(found, axis=0).tolist()) if found else UnitMatch(1.0, 1.0, 0.0)


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


def _judge_descent(moe: Moe) -> tuple[Verdict, str] | None:
    """Judge experts by their cosines (K,) with their base; None where no base is known."""
    kin = moe.source.kinship()
    if kin is None:
        return None
    named = zip(moe.source.names, kin, strict=True)
    odd = [f"{name} (cosine {cosine:.2f})" for name, cosine in named if not cosine >= ALIKE]
    if odd:
        return "do not merge", f"{', '.join(odd)} did not come from the base that the experts should share"
    return "merge", f"all experts came from the base (their matrices have cosine {min(kin):.2f} or more with its)"
