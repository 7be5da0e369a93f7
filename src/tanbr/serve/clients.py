"""How much each client's feedback counts: what contradicts everybody else counts less, and nobody counts too much.

`capped` is the one limit on what a client counts for: in a slot's reward, in the comparison of clients, in the live
guard, and in what the monitor learns.

A client is an opaque key; the empty one stands for nobody in particular and is taken at its word. What one client says
of a slot is compared with what the others say of the same slot, task by task, and the evidence adds up over slots: a
reward r where the others' mean is p speaks for the client by (2r − 1)·log(p / (1 − p)), which is what tells an honest
coin from one that is turned over. While most are honest, those that are not end up with a weight near 0.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tanbr.serve.config import RewardConfig
from tanbr.serve.rows import Given
from tanbr.types import FloatArray

REMEMBERED = 10_000  # clients
SLACK = 2.0  # evidence against a client that may be chance
MOST, LEAST = 3.0, -20.0  # evidence that is kept: a client that begins to lie loses its weight within a few slots
SURE = 0.1  # the others' mean is never taken for nearer to 0 or 1 than this
ENOUGH = 4.0  # rewards of others for a task that make it worth a comparison
FADING = 0.995  # of evidence and of who led, a slot: about 200 slots are remembered


class Clients:
    """What is known of each client: the evidence for (above 0) or against it, and who gives most of what counts."""

    def __init__(
        self, config: RewardConfig, evidence: dict[str, float] | None = None, led: dict[str, float] | None = None
    ) -> None:
        self._config = config
        self.evidence: dict[str, float] = dict(evidence or {})
        self.led: dict[str, float] = dict(led or {})  # client ("" where nobody did) → slots that it led, fading

    def trust(self, client: str) -> float:
        """The weight of a client's rewards, in (0, 1]."""
        return float(np.exp(min(0.0, self._config.doubt * (self.evidence.get(client, 0.0) + SLACK))))

    def leads(self, client: str) -> bool:
        """Whether a client gave over half of what counted in most slots lately, as a server's own application does.

        There is hardly anybody to agree with it, so it is believed alone.
        """
        return self.led.get(client, 0.0) > sum(self.led.values()) / 2

    def learn(self, rows: Sequence[Given], shares: FloatArray) -> None:
        """Compare the clients of one slot's feedback with one another; shares (n, V) say whose task each reward is."""
        names = sorted({row.client for row in rows} - {""})
        place = {name: number for number, name in enumerate(["", *names])}
        of = np.array([place[row.client] for row in rows])
        counted = self.weights(rows)
        self._lead(dict(zip(place, np.bincount(of, weights=counted).tolist(), strict=True)))
        if len(names) < 2:
            return
        rewards = np.array([row.reward for row in rows])
        weights = shares * counted[:, None]
        counts, sums = np.zeros((2, len(place), shares.shape[1]))
        np.add.at(counts, of, weights)
        np.add.at(sums, of, weights * rewards[:, None])
        others = counts.sum(axis=0) - counts  # (clients, V)
        mean = (sums.sum(axis=0) - sums) / np.maximum(others, 1e-9)
        odds = np.where(others >= ENOUGH, np.log(_held(mean) / (1 - _held(mean))), 0.0)
        gained = np.bincount(of, weights=(2 * rewards - 1) * (shares * odds[of]).sum(axis=1), minlength=len(place))
        for name, change in zip(names, gained[1:].tolist(), strict=True):
            known = self.evidence.pop(name, 0.0)  # the newest are at the end
            self.evidence[name] = float(np.clip(FADING * known + change, LEAST, MOST))
        while len(self.evidence) > REMEMBERED:
            del self.evidence[next(iter(self.evidence))]

    def _lead(self, counted: dict[str, float]) -> None:
        """Note who gave over half of what counted in a slot; who led none for long is forgotten."""
        leader = max(counted, key=lambda client: counted[client])
        leader = leader if counted[leader] > sum(counted.values()) / 2 else ""
        self.led = {client: FADING * slots for client, slots in self.led.items() if slots > 0.01}
        self.led[leader] = self.led.get(leader, 0.0) + 1.0

    def weights(self, rows: Sequence[Given]) -> FloatArray:
        """What each reward of a slot counts (n,): its client's trust, less where the client says too much."""
        trust = np.array([self.trust(row.client) for row in rows])
        names, of = np.unique([row.client for row in rows], return_inverse=True)
        given = np.bincount(of, weights=trust).astype(np.float64)
        return np.asarray(trust * capped(names.tolist(), given, self._config.client_share)[of])

    def fair(self, rows: Sequence[Given], most: int) -> list[Given]:
        """Choose up to `most` rows, one of each client in turn, and of none more than counts."""
        given, turns = Counter(row.client for row in rows), Counter[str]()
        chosen: list[tuple[int, Given]] = []
        for row, weight in zip(rows, self.weights(rows), strict=True):
            if turns[row.client] < weight * given[row.client]:
                chosen.append((turns[row.client], row))
            turns[row.client] += 1
        return [row for _, row in sorted(chosen, key=lambda one: one[0])[:most]]


def capped(names: Sequence[str], given: FloatArray, share: float) -> FloatArray:
    """How much counts of what each client gave (n,), in (0, 1].

    One client counts for at most `share` of all that counts, or as much as the median client, if that is more.
    """
    named = np.array([name != "" for name in names])
    most, middle = given.copy(), float(np.median(given[named])) if named.any() else 0.0
    for _ in range(30):  # what is cut makes the total smaller, and so the share
        limit = max(share * float(most.sum()), middle)
        most = np.where(named, np.minimum(given, limit), given)
    return np.asarray(most / np.maximum(given, 1e-12))


def _held(mean: FloatArray) -> FloatArray:
    return np.clip(mean, SURE, 1 - SURE)
