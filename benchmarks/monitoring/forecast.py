"""How well the mix of the next slot is foreseen, through steady, switching and drifting traffic."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from monitoring.data import SIZES, Data, taught
from tanbr.lab.tasks import traffic
from tanbr.types import FloatArray


def ema(gain: float) -> Callable[[FloatArray | None, FloatArray], FloatArray]:
    """Give a plain moving average."""
    return lambda old, new: new if old is None else (1 - gain) * old + gain * new


class EmaWithReset:
    """A moving average of gain .3 that starts afresh when the mix jumps by more than multinomial noise explains."""

    def __init__(self) -> None:
        self._mix: FloatArray | None = None
        self._weight = 0.0

    def __call__(self, new: FloatArray, requests: int) -> FloatArray:
        """Take in the estimate of a slot; the forecast."""
        if self._mix is not None:
            middle = (self._mix + new) / 2
            chance = np.sqrt(2 * middle * (1 - middle) * (1 / requests + 1 / self._weight) / np.pi).sum()
            if np.abs(new - self._mix).sum() <= 2.5 * chance + 0.1:
                self._mix = 0.7 * self._mix + 0.3 * new
                self._weight = min(0.7 * self._weight + requests, requests * 1.7 / 0.3)
                return self._mix
        self._mix, self._weight = new, float(requests)
        return new


def measure(data: Data, *, per_task: int, length: int, seeds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean L1 of the forecast against the next slot's latent mix; how switches are followed; one run for the plot."""
    texts, labels = data.everything()
    pools = [np.flatnonzero(labels == task) for task in range(len(data.tasks))]
    rivals = {"last slot": ema(1.0), "EMA .3": ema(0.3)}
    expert = taught(data, per_task)
    table: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for kind in ("fixed", "switching", "dirichlet"):
        for size in SIZES:
            errors: dict[str, list[float]] = {}
            caught, switches, moves, covered = 0, 0, [], []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                mixes = traffic.mixes(kind, tasks=len(pools), slots=length, seed=seed, alpha=0.3, period=20)
                monitor = deepcopy(expert)
                guesses: dict[str, FloatArray] = {}
                with_reset = EmaWithReset()
                run = []
                for slot, mix in enumerate(mixes):
                    counts = rng.multinomial(size, mix)
                    places = np.concatenate([rng.choice(pool, n) for pool, n in zip(pools, counts, strict=True)])
                    monitor.observe([texts[place] for place in places])
                    closed = monitor.close_slot()
                    before = guesses.get("tanbr monitor")
                    guesses["tanbr monitor"] = closed.forecast
                    for name, rival in rivals.items():
                        guesses[name] = rival(guesses.get(name), closed.estimate)
                    guesses["EMA .3 with a reset"] = with_reset(closed.estimate, size)
                    if before is not None and kind == "fixed":
                        moves.append(float(np.abs(closed.forecast - before).sum()))
                    run.append((closed.estimate, closed.forecast))
                    if slot + 1 < length:
                        for name, guess in guesses.items():
                            errors.setdefault(name, []).append(float(np.abs(guess - mixes[slot + 1]).sum()))
                        covered.append(np.mean(np.abs(closed.forecast - mixes[slot + 1]) <= 2 * closed.uncertainty))
                for slot in (np.flatnonzero(np.abs(np.diff(mixes, axis=0)).sum(axis=1) > 0.3) + 1).tolist():
                    if kind == "switching" and slot + 1 < length:  # known after the first or the second slot
                        switches += 1
                        jump = np.abs(mixes[slot] - mixes[slot - 1]).sum()
                        caught += any(np.abs(run[s][1] - mixes[slot]).sum() < 0.5 * jump for s in (slot, slot + 1))
                if kind == "switching" and size == 256 and seed == 0:
                    rows = {"mix": mixes, "estimate": [e for e, _ in run], "forecast": [f for _, f in run]}
                    shown = {name: np.round(np.asarray(values)[:80], 3) for name, values in rows.items()}
            table[f"{kind}, {size}"] = {
                **{name: float(np.mean(values)) for name, values in errors.items()},
                "within 2 standard deviations": float(np.mean(covered)),
                **({"switches": switches, "followed within two slots": caught} if switches else {}),
                **({"forecast moves per slot": float(np.mean(moves))} if moves else {}),
            }
    return table, shown
