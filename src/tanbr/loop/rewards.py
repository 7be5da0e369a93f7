"""Credit: from single rewards to the reward of a slot r (V,) and its counts, and how much each client's word counts.

A reward belongs to the task that its client names. Without one it is shared out by the monitor's posterior.

A client is an opaque key; the empty one stands for nobody in particular and is believed. A client's reward r where the
others' mean for the slot and task is p speaks for the client by (2r − 1)·log(p / (1 − p)): evidence that adds up. While
most clients are honest, the others end up with a weight near 0. `capped` is the one limit on what a client counts for.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tanbr.loop.config import RewardConfig
from tanbr.monitor.recogniser import by_mix
from tanbr.types import Counts, FloatArray, Reward, TaskMix

VERDICT = "verdict"  # source of what the guard or an operator says of a blend; it counts whatever the weights are
LEAST_COUNT = 0.1  # requests that must speak for a task in a slot; less than a tenth of one is a posterior's tail

CLIENT_SHARE = 0.2  # most that one client counts for in a slot: with five or more, none decides alone
REMEMBERED = 10_000  # clients
SLACK = 2.0  # evidence against a client that may be chance
MOST_EVIDENCE, LEAST_EVIDENCE = 3.0, -20.0  # a client that begins to lie loses its weight within a few slots
SURE = 0.1  # the others' mean is never taken for nearer to 0 or 1 than this
ENOUGH = 4.0  # rewards of others for a task that make it worth a comparison
FADING = 0.995  # of evidence and of who led, a slot: about 200 slots are remembered


@dataclass(frozen=True, eq=False)
class Given:
    """A reward that somebody gave for one answered request."""

    seq: int  # its number in the order of arrival
    slot: int
    place: int  # of the model, among those of the slot, that answered
    source: str  # feedback or labels
    task: int | None  # that it was given for; None if nobody said
    reward: float
    posterior: FloatArray | None = None  # (V,) of the request; None if it was not kept
    client: str = ""  # who gave it
    novel: bool = False  # whether the request is unlike any known task
    id: bytes = b""
    label: float | None = None  # number of the true label, or the true score, if it was given

    @property
    def counts(self) -> bool:
        """Whether it says something about a task: the request is like one, or its client names one."""
        return self.task is not None or not self.novel

    def share(self, mix: TaskMix) -> FloatArray:
        """How much of it belongs to each task (V,), summing to 1, in a slot of this mix (V,)."""
        if self.task is not None:
            return np.asarray(np.eye(len(mix))[self.task])
        return mix if self.posterior is None else by_mix(self.posterior[None], mix)[0]


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums and counts of rewards per task and source."""

    tasks: int
    parts: Mapping[str, FloatArray] = field(default_factory=dict)  # source → sums and counts (2, V)

    def add(self, source: str, sums: FloatArray, counts: FloatArray) -> "Tally":
        """Add sums and counts (V,)."""
        return replace(self, parts={**self.parts, source: self.parts.get(source, 0.0) + np.array([sums, counts])})

    def reward(self, config: RewardConfig) -> tuple[Reward, Counts]:
        """The slot's reward (V,), NaN where too few requests speak for a task, and the counts (V,)."""
        total, count = np.zeros((2, self.tasks))
        for source, (sums, counts) in self.parts.items():
            weight = _weight(source, config)
            total, count = total + weight * sums, count + weight * counts
        seen = count >= LEAST_COUNT
        reward = np.divide(total, count, out=np.full(self.tasks, np.nan), where=seen)
        return np.clip(reward, 0.0, 1.0), np.where(seen, count, 0.0)


def shares(tallies: Sequence[Tally], config: RewardConfig) -> dict[str, float]:
    """Source → its share of the weighted counts."""
    weights: dict[str, float] = defaultdict(float)
    for tally in tallies:
        for source, (_, counts) in tally.parts.items():
            weights[source] += _weight(source, config) * float(counts.sum())
    total = sum(weights.values())
    return {source: weight / total for source, weight in weights.items()} if total else {}


def _weight(source: str, config: RewardConfig) -> float:
    return 1.0 if source == VERDICT else float(getattr(config, source, 0.0))


@dataclass(frozen=True, eq=False)
class Trust:
    """What is known of each client: the evidence for (above 0) or against it, and who gives most of what counts."""

    evidence: Mapping[str, float] = field(default_factory=dict)
    led: Mapping[str, float] = field(default_factory=dict)  # client ("" for nobody) → slots that it led, fading

    def of(self, client: str) -> float:
        """The weight of a client's rewards, in (0, 1]."""
        return float(np.exp(min(0.0, self.evidence.get(client, 0.0) + SLACK)))

    def leads(self, client: str) -> bool:
        """Whether a client gave over half of what counted in most slots lately: then it is believed alone."""
        return self.led.get(client, 0.0) > sum(self.led.values()) / 2

    def weights(self, rows: Sequence[Given]) -> FloatArray:
        """What each reward of a slot counts (n,): its client's trust, less where the client says too much."""
        trust = np.array([self.of(row.client) for row in rows])
        names, of = np.unique([row.client for row in rows], return_inverse=True)
        given = np.bincount(of, weights=trust).astype(np.float64)
        return np.asarray(trust * capped(names.tolist(), given)[of])

    def fair(self, rows: Sequence[Given], most: int) -> list[Given]:
        """Choose up to `most` rows, one of each client in turn, and of none more than counts."""
        given, turns = Counter(row.client for row in rows), Counter[str]()
        chosen: list[tuple[int, Given]] = []
        for row, weight in zip(rows, self.weights(rows), strict=True):
            if turns[row.client] < weight * given[row.client]:
                chosen.append((turns[row.client], row))
            turns[row.client] += 1
        return [row for _, row in sorted(chosen, key=lambda one: one[0])[:most]]

    def learned(self, rows: Sequence[Given], mix: TaskMix) -> "Trust":
        """Compare the clients of one model's feedback in a slot of this mix (V,) with one another."""
        rows = [row for row in rows if row.counts]
        if not rows:
            return self
        names = sorted({row.client for row in rows} - {""})
        place = {name: number for number, name in enumerate(["", *names])}
        of = np.array([place[row.client] for row in rows])
        counted = self.weights(rows)
        after = self._led_by(dict(zip(place, np.bincount(of, weights=counted).tolist(), strict=True)))
        if len(names) < 2:
            return after
        shares = np.array([row.share(mix) for row in rows])  # (n, V)
        rewards = np.array([row.reward for row in rows])
        weights = shares * counted[:, None]
        counts, sums = np.zeros((2, len(place), shares.shape[1]))
        np.add.at(counts, of, weights)
        np.add.at(sums, of, weights * rewards[:, None])
        others = counts.sum(axis=0) - counts  # (clients, V)
        mean = np.clip((sums.sum(axis=0) - sums) / np.maximum(others, 1e-9), SURE, 1 - SURE)
        odds = np.where(others >= ENOUGH, np.log(mean / (1 - mean)), 0.0)
        gained = np.bincount(of, weights=(2 * rewards - 1) * (shares * odds[of]).sum(axis=1), minlength=len(place))
        evidence = {name: known for name, known in self.evidence.items() if name not in place}  # the newest at the end
        for name, change in zip(names, gained[1:].tolist(), strict=True):
            known = FADING * self.evidence.get(name, 0.0) + change
            evidence[name] = float(np.clip(known, LEAST_EVIDENCE, MOST_EVIDENCE))
        return replace(after, evidence=dict(list(evidence.items())[-REMEMBERED:]))

    def _led_by(self, counted: Mapping[str, float]) -> "Trust":
        """Note who gave over half of what counted in a slot; who led none for long is forgotten."""
        leader = max(counted, key=lambda client: counted[client])
        leader = leader if counted[leader] > sum(counted.values()) / 2 else ""
        led = {client: FADING * slots for client, slots in self.led.items() if slots > 0.01}
        return replace(self, led={**led, leader: led.get(leader, 0.0) + 1.0})


def capped(names: Sequence[str], given: FloatArray) -> FloatArray:
    """How much counts of what each client gave (n,), in (0, 1].

    One client counts for at most CLIENT_SHARE of all that counts, or as much as the median client, if that is more.
    """
    named = np.array([name != "" for name in names])
    most, middle = given.copy(), float(np.median(given[named])) if named.any() else 0.0
    for _ in range(30):  # what is cut makes the total smaller, and so the share
        limit = max(CLIENT_SHARE * float(most.sum()), middle)
        most = np.where(named, np.minimum(given, limit), given)
    return np.asarray(most / np.maximum(given, 1e-12))


def credited(tallies: Sequence[Tally], rows: Sequence[Given], mix: TaskMix, trust: Trust) -> list[Tally]:
    """Add the feedback of one slot with this mix (V,) to its models' tallies (G,), weighed by client."""
    result = []
    for place, tally in enumerate(tallies):
        mine = [row for row in rows if row.place == place and row.counts]
        for row, weight in zip(mine, trust.weights(mine) if mine else (), strict=True):
            share = row.share(mix)
            tally = tally.add(row.source, weight * row.reward * share, weight * share)
        result.append(tally)
    return result
