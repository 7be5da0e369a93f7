"""A baseline that is left only on evidence, as in conservative bandits (Wu et al. 2016, Kazerouni et al. 2017).

A blend x may take the place of the baseline b(ψ) only while

    Λ + [ψᵀ(f(x) − f(b)) at κ deviations below its mean] ≥ −budget · Σ_s ψ_sᵀ f(b_s)

where Λ is what leaving the baseline is expected to have earned so far (`Ledger`), the sum is the baseline's expected
reward up to and with this slot, and decisions whose reward is still to come stay charged as x is. The deviation is that
of the difference: a blend near the baseline shares most of its uncertainty, so that small steps are cheap.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tanbr.router.argmax import first_best
from tanbr.router.config import DefaultModeConfig
from tanbr.router.ledger import Ledger
from tanbr.router.panel import Candidates
from tanbr.router.posterior import PooledPosterior
from tanbr.router.records import Open, Terms
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes
from tanbr.types import Account, Blend, FloatArray, TaskMix

STEP, SHRINK = 0.15, 0.7  # length (Euclid) of the first gradient step, and of each next one as a share of it


class Careful(Protocol):
    """What a router with a baseline has to offer; `GpTree` is one."""

    sizes: Sizes
    config: DefaultModeConfig
    posterior: PooledPosterior
    ledger: Ledger

    @property
    def beta(self) -> float:
        """Standard deviations in the bound."""
        ...

    def usable(self) -> NDArray[np.intp]:
        """Rows of the posterior's points that may be chosen."""
        ...

    def snapped(self, blend: Blend) -> Blend:
        """Play a blend near a known arm as that arm."""
        ...

    def bounded(self, blends: FloatArray, mix: TaskMix) -> Candidates:
        """Make candidates of any blends (n, K)."""
        ...

    def climbed(self, x: FloatArray, mix: TaskMix, *, steps: int, size: float, shrink: float) -> list[FloatArray]:
        """Every blend on the way up the bound from x (n, K)."""
        ...


def baseline_of(config: DefaultModeConfig, sizes: Sizes, mix: TaskMix) -> Blend:
    """Give the blend (K,) that needs no reward, for a mix (V,)."""
    blend = np.full(sizes.experts, 1.0 / sizes.experts)
    if config.baseline == "proportional":
        blend = np.zeros(sizes.experts)
        np.add.at(blend, list(config.own_experts), mix)
    elif not isinstance(config.baseline, str):
        blend = np.array(config.baseline)
    return keep_largest(blend[None], sizes.max_active)[0]


def account(router: Careful) -> Account:
    """Add up what leaving the baseline is expected to have cost."""
    ledger = router.ledger
    gain = ledger.gain(router.posterior.mean_at)
    budget = router.config.budget * ledger.earned
    return Account(ledger.slots, ledger.off, ledger.swaps, ledger.earned, gain, budget, gain + budget)


def waiting_charge(open_slots: list[Open]) -> float:
    """Add up what the decisions whose reward is still to come were charged with: 0 or less."""
    return sum(min(slot.why[0].least_gain, 0.0) for slot in open_slots)


def choose_carefully(router: Careful, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:
    """Take the candidate of highest bound among those the balance pays for; the baseline is always one."""
    config, pool, ledger = router.config, router.posterior, router.ledger
    base = baseline_of(config, router.sizes, mix)
    served = ledger.serving(open_slots)
    near = np.concatenate([base[None], served if len(served) == 1 else base[None]])
    climbs = router.climbed(near, mix, steps=config.steps, size=STEP, shrink=SHRINK)
    tried = np.concatenate([near, *climbs])
    mean, gain = pool.at(tried)
    rows = router.usable()
    blends, mean = np.concatenate([tried, pool.points[rows]]), np.concatenate([mean, pool.mean[rows]])
    kernel = np.concatenate([pool.kernel(tried), pool.cross[rows, : pool.used]])
    gain = np.concatenate([gain, pool.gain[rows]])

    expected = mean @ mix
    deviation = np.sqrt(pool.variance_of(mix, gain))
    doubt = config.doubt * np.sqrt(pool.mixed_variance(mix, pool.contrast(blends, kernel, gain, base)))
    least = expected - expected[0] - doubt
    least[0] = 0.0
    balance = ledger.gain(pool.mean_at) + config.budget * (ledger.earned + max(expected[0], 0.0))
    balance += waiting_charge(open_slots)

    bound = expected + router.beta * deviation
    allowed = least >= -balance if config.budget > 0 else np.zeros(len(least), dtype=np.bool_)
    allowed[0] = True
    bound[~allowed] = -np.inf
    best = first_best(bound)
    if bound[1] >= bound[best] - config.margin:
        best = 1
    chosen = router.snapped(blends[best]) if best > 1 else blends[best]
    terms = Terms(
        mean=float(expected[best]), uncertainty=float(router.beta * deviation[best]), candidates=len(blends),
        baseline=float(expected[0]), least_gain=float(least[best]), balance=float(balance),
    )  # fmt: skip
    return chosen, terms
