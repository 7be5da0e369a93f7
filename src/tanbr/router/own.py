"""A router of your own: a class with `ask(task_mix)` and `tell(decision, reward)`, in the shell that all routers share.

`examples/own_router.py` has one. `ask` gives a blend (K,), or a `Decision`; with an argument `models`, that many blends
(G, K), each task to the one in which its own expert weighs most. The shell checks what comes in, numbers decisions and
forgets those that are not served. Of more than B experts it keeps the B largest.
"""

# ruff: noqa: ARG002 - a policy is handed more than it needs

import copy
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from tanbr.errors import ConfigError, InputError, StateError, TanbrError
from tanbr.router.panel import Readings, task_groups
from tanbr.router.shell import AskTell, Nothing, Question
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, as_blend


def built(make: Callable[..., Any], *sizes: int, **options: Any) -> Any:
    """Call a constructor with experts and tasks, or without, and with those options that it takes."""
    name = getattr(make, "__name__", str(make))
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is no class that makes a router") from None
    known = signature.parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        options = {option: value for option, value in options.items() if option in known}
    for given in (sizes, ()):
        try:
            signature.bind(*given, **options)
        except TypeError:
            continue
        router = _called(f"{name}(…)", make, *given, **options)
        if not all(callable(getattr(router, method, None)) for method in ("ask", "tell")):
            raise ConfigError(f"{name} is no router: it needs ask(task_mix) and tell(decision, reward)")
        return router
    raise ConfigError(f"{name}{signature} asks for more than a router is made with: experts, tasks, seed")


def _called(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call what a user wrote; an error in it says where it is."""
    try:
        return call(*args, **options)
    except TanbrError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(at.filename).name}, line {at.lineno}"
        raise InputError(f"{name} failed with {type(error).__name__}: {error} ({place})") from error


@dataclass(frozen=True, eq=False)
class _Theirs:
    """Asks and tells somebody's router, in which all is kept that is learned."""

    router: Any
    sizes: Sizes
    own_experts: Sequence[int]

    @property
    def panels(self) -> bool:
        return "models" in inspect.signature(self.router.ask).parameters

    def start(self, rng: np.random.Generator) -> Nothing:
        return Nothing()

    def choose(self, state: Nothing, asked: Question, rng: np.random.Generator) -> Decision:
        panel = {"models": asked.models, "confusion": asked.confusion} if asked.models > 1 else {}
        takes = inspect.signature(self.router.ask).parameters
        said = _called("ask", self.router.ask, asked.task_mix, **{n: panel[n] for n in panel.keys() & takes.keys()})
        if isinstance(said, Decision):
            return said
        try:
            blends = np.atleast_2d(np.asarray(said, dtype=np.float64))
        except (TypeError, ValueError):
            blends = np.zeros((0, 0))
        if blends.shape != (asked.models, self.sizes.experts):
            one = f"{self.sizes.experts} weights" if asked.models == 1 else f"{asked.models} blends"
            shown = f"shape {np.shape(said)}" if blends.size else type(said).__name__
            raise InputError(f"ask must give {one}, or a Decision (got {shown})")
        blends = np.array([as_blend(x, experts=self.sizes.experts) for x in blends])
        if self.own_experts:
            estimates = blends[:, list(self.own_experts)]
        else:
            groups = task_groups(Readings.of(asked.task_mix, asked.confusion), asked.models)
            estimates = (groups == np.arange(asked.models)[:, None]).astype(np.float64)
        return asked.decided(keep_largest(blends, self.sizes.max_active), estimates=estimates)

    def learn(
        self, state: Nothing, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Nothing:
        told = (rewards, counts) if len(rewards) > 1 else (rewards[0], counts[0])
        takes = "counts" in inspect.signature(self.router.tell).parameters
        _called("tell", self.router.tell, decision, *told[: 1 + takes])
        return state

    def warm_start(self, state: Nothing, blend: Blend, reward: Reward, counts: Counts) -> Nothing:
        if hasattr(self.router, "warm_start"):
            _called("warm_start", self.router.warm_start, blend[None], reward[None], counts[None])
        return state

    def expected(self, state: Nothing) -> FloatArray:
        return np.full((1, self.sizes.tasks), np.nan)


class OwnRouter(AskTell):
    """Somebody's router in the shell; `own_experts` (V,) is the expert of each task, if that is known."""

    def __init__(
        self,
        make: Callable[..., Any],
        experts: int,
        tasks: int,
        *,
        own_experts: Sequence[int] = (),
        max_active: int | None = None,
        **options: Any,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        self.theirs = built(make, experts, tasks, max_active=sizes.max_active, **options)
        super().__init__(_Theirs(self.theirs, sizes, own_experts), sizes, settings={})
        self.fork()  # what cannot be copied is refused here

    def fork(self) -> Self:
        """Make an independent router; theirs is copied, by its own `fork` if it has one."""
        twin, policy = super().fork(), cast(_Theirs, self._policy)
        copied = getattr(self.theirs, "fork", lambda: copy.deepcopy(self.theirs))
        twin.theirs = _called("a copy of the router (it may have a `fork` of its own)", copied)
        twin._policy = replace(policy, router=twin.theirs)
        return twin

    def save(self, path: str | Path) -> None:
        """Refuse: only its author knows how to save it."""
        raise StateError(f"cannot write {path}: a router of your own is saved by yourself")
