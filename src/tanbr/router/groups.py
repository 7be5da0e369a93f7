"""A router for many experts learns over groups of them: M dimensions to explore instead of K.

K experts are in M groups, each with fixed shares of its experts. A blend y over groups (M,) stands for the blend x over
experts (K,) with x_k = y_g · load_k / (loads of the group g that k is in).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import DataError, InputError
from tanbr.files import write_atomically
from tanbr.router.config import DefaultModeConfig
from tanbr.router.default import GpTree
from tanbr.router.known import Known, Rules
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Account, Blend, Counts, Decision, FloatArray, Reward, TreeView


@dataclass(frozen=True)
class Groups:
    """A partition of K experts; anything else is an `InputError`."""

    members: tuple[tuple[int, ...], ...]  # (M,) the experts of every group
    loads: tuple[float, ...] = ()  # (K,) above 0, shares inside a group are by them; all alike if empty
    found_by: str = ""  # weights, routing or reward; "" where nobody says
    model_sha256: str = ""  # of the checkpoint; "" where it is not known

    def __post_init__(self) -> None:
        listed = [expert for group in self.members for expert in group]
        K = len(listed)
        if not self.members or not all(self.members):
            raise InputError("every group must hold an expert (got an empty one); leave it out")
        twice = sorted({expert for expert in listed if listed.count(expert) > 1}) if len(set(listed)) < K else []
        if twice:
            raise InputError(f"an expert must be in one group (got expert {twice[0]} in two); name it once")
        lost = sorted(set(range(K)) - set(listed))
        if lost:
            raise InputError(f"groups of {K} experts must number them 0..{K - 1} (got none with expert {lost[0]})")
        if self.loads and (len(self.loads) != K or not all(0 < load < float("inf") for load in self.loads)):
            raise InputError(f"loads must be {K} numbers above 0, one an expert (got {len(self.loads)} numbers)")

    @classmethod
    def of(cls, lists: Sequence[Any], *, loads: Sequence[float] = (), **about: str) -> "Groups":
        """Make groups of lists of experts, one list a group."""
        if isinstance(lists, str) or not isinstance(lists, Sequence):
            raise InputError(f"groups must be lists of experts, one a group (got {type(lists).__name__})")
        for group in lists:
            if not isinstance(group, list | tuple) or not all(type(expert) is int for expert in group):
                raise InputError(f"a group must be a list of expert numbers (got {str(group)[:40]!r})")
        return cls(tuple(map(tuple, lists)), tuple(map(float, loads)), **about)

    @classmethod
    def by_labels(cls, labels: Sequence[int]) -> "Groups":
        """Make groups of the experts (K,) that have the same label, in the order of the labels."""
        return cls.of([[k for k, label in enumerate(labels) if label == one] for one in sorted(set(labels))])

    @property
    def experts(self) -> int:
        """K."""
        return len(self.of_expert)

    def __len__(self) -> int:
        """M, how many groups there are."""
        return len(self.members)

    @cached_property
    def of_expert(self) -> NDArray[np.intp]:
        """The group of every expert (K,)."""
        found = np.empty(sum(map(len, self.members)), dtype=np.intp)
        for group, members in enumerate(self.members):
            found[list(members)] = group
        return found

    @cached_property
    def shares(self) -> FloatArray:
        """The share of every expert in its group (K,)."""
        loads = np.array(self.loads) if self.loads else np.ones(self.experts)
        return np.asarray(loads / np.bincount(self.of_expert, loads)[self.of_expert])

    @property
    def digest(self) -> str:
        """Tell partitions apart."""
        return hashlib.sha256(json.dumps([self.members, self.loads]).encode()).hexdigest()[:16]

    def expand(self, blends: FloatArray, *, max_active: int | None = None) -> FloatArray:
        """Blends over experts (…, K) of blends over groups (…, M).

        With at most B experts each group keeps its weight, and as many experts as that weight earns it, those of the
        largest shares first: cutting the smallest weights instead would cut whole groups.
        """
        blends = np.asarray(blends)
        whole = np.asarray(blends[..., self.of_expert] * self.shares)
        if max_active is None or max_active >= self.experts:
            return whole
        rows = [self._within(y, x, max_active) for y, x in zip(_rows(blends), _rows(whole), strict=True)]
        return np.array(rows).reshape(whole.shape)

    def _within(self, blend: FloatArray, whole: FloatArray, most: int) -> FloatArray:
        if np.count_nonzero(whole) <= most:
            return whole
        active = np.argsort(-blend, kind="stable")[: min(most, np.count_nonzero(blend))]
        seats = np.zeros(len(blend), dtype=np.intp)
        seats[active] = 1
        room = np.array([len(members) for members in self.members])
        weight = np.zeros(len(blend))
        weight[active] = blend[active] / blend[active].sum()
        for _ in range(most - len(active)):
            seats[np.where(seats < room, weight / (2 * seats + 1), -1.0).argmax()] += 1
        x = np.zeros_like(whole)
        for group in active:
            members = np.array(self.members[group])
            kept = members[np.argsort(-self.shares[members], kind="stable")[: seats[group]]]
            x[kept] = weight[group] * self.shares[kept] / self.shares[kept].sum()
        return x

    def project(self, blends: FloatArray) -> FloatArray:
        """Weights of the groups (…, M) in blends over experts (…, K)."""
        blends = np.asarray(blends)
        out = np.zeros((*blends.shape[:-1], len(self)))
        np.add.at(out.T, self.of_expert, blends.T)
        return out

    def check(self, experts: int, model_sha256: str, *, source: str | Path = "these groups") -> "Groups":
        """Refuse groups that are of another checkpoint."""
        if self.experts != experts:
            raise DataError(f"{source} has {self.experts} experts, the checkpoint {experts}; make it again")
        if self.model_sha256 not in ("", model_sha256):
            raise DataError(f"{source} was made with other weights; make it again with `tanbr inspect --groups`")
        return self

    def to_json(self) -> dict[str, Any]:
        """Give what `from_json` reads."""
        about = {"by": self.found_by, "model_sha256": self.model_sha256}
        return {"groups": self.members, "loads": self.loads} | {key: value for key, value in about.items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Groups":
        """Read lists under "groups"; "loads", "by" and "model_sha256" may be left out."""
        about = {"found_by": str(values.get("by", "")), "model_sha256": str(values.get("model_sha256", ""))}
        return cls.of(values["groups"], loads=values.get("loads", ()), **about)

    def save(self, path: Path, **about: Any) -> None:
        """Write the groups, with what they are `about`, as JSON."""
        write_atomically(path, json.dumps(self.to_json() | about) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Groups":
        """Read what `save` wrote, or somebody by hand."""
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except InputError as error:
            raise DataError(f"{path}: {error}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path} holds no groups of experts ({error}); make them with `tanbr inspect --groups`"
            ) from None


def _rows(table: FloatArray) -> FloatArray:
    return table.reshape(-1, table.shape[-1])


class GroupedTree:
    """The default policy over groups; it speaks of blends over experts."""

    panels = True

    def __init__(self, sizes: Sizes, groups: Groups, config: DefaultModeConfig) -> None:
        self.sizes, self.groups = sizes, groups
        inside = Sizes(len(groups), sizes.tasks, min(sizes.max_active, len(groups)))
        self.inner = GpTree(Rules.of(inside, _over_groups(config, sizes, groups)))

    def start(self, rng: np.random.Generator) -> Known:
        """Know nothing yet."""
        return self.inner.start(rng)

    def choose(self, state: Known, asked: Question, rng: np.random.Generator) -> Decision:
        """Choose over groups."""
        waiting = tuple(replace(one, blends=self.groups.project(one.blends)) for one in asked.open)
        decision = self.inner.choose(state, replace(asked, open=waiting), rng)
        return replace(decision, blends=self.groups.expand(decision.blends, max_active=self.sizes.max_active))

    def learn(
        self, state: Known, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Known:
        """Learn over groups."""
        return self.inner.learn(
            state, replace(decision, blends=self.groups.project(decision.blends)), rewards, counts, rng
        )

    def warm_start(self, state: Known, blend: Blend, reward: Reward, counts: Counts) -> Known:
        """Learn a reward of any blend over experts as that of its groups."""
        return self.inner.warm_start(state, self.groups.project(blend), reward, counts)

    def account(self, state: Known) -> Account | None:
        """What exploration has cost and may cost; None without a baseline."""
        return self.inner.account(state)

    def view(self, state: Known) -> TreeView:
        """Show the tree over groups, its blends over experts."""
        view = self.inner.view(state)
        return replace(view, blend=self.groups.expand(view.blend, max_active=self.sizes.max_active))


def _over_groups(config: DefaultModeConfig, sizes: Sizes, groups: Groups) -> DefaultModeConfig:
    """Say of groups what the settings say of experts: whose tasks are whose, and the baseline."""
    update: dict[str, Any] = {"own_experts": tuple(int(groups.of_expert[k]) for k in config.own_experts)}
    if config.baseline not in ("none", "proportional"):
        even = np.full(sizes.experts, 1.0 / sizes.experts)
        over = groups.project(even if config.baseline == "even" else np.array(config.baseline))
        update["baseline"] = tuple(keep_largest(over, min(sizes.max_active, len(groups))).tolist())
    return config.model_copy(update=update)
