"""Rivals behind the interface of what they rival; routers by name. To add one: its policy, and a line here."""

import difflib
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tanbr.errors import ConfigError
from tanbr.lab.rivals.bandits import Nucb, ProbeAndAssign, VectorGP
from tanbr.lab.rivals.rules import BestKnown, FixedBlend, Proportional, RandomBlend
from tanbr.router import AskTell, Tanbr
from tanbr.router.config import RouterConfig

__all__ = ["ROUTERS", "BestKnown", "FixedBlend", "Nucb", "ProbeAndAssign", "Proportional", "RandomBlend", "VectorGP"]

Build: TypeAlias = Callable[[int, int, int, RouterConfig], AskTell]  # of K, V, seed and settings

LEARNING: dict[str, Build] = {
    "tanbr": lambda K, V, seed, c: Tanbr(K, V, seed=seed, config=c),
    "paper": lambda K, V, seed, c: Tanbr(K, V, mode="paper", seed=seed, config=c),  # Algorithm 1 as printed
    "nucb": lambda K, V, seed, _: Nucb(K, V, seed=seed),
    "vector-gp": lambda K, V, seed, _: VectorGP(K, V, seed=seed),
    "probing": lambda K, V, *_: ProbeAndAssign(K, V),
}
ROUTERS: dict[str, Build] = {
    **LEARNING,
    "random": lambda K, V, seed, _: RandomBlend(K, V, seed=seed),
    "proportional": lambda K, V, _, c: Proportional(K, V, own=c.default.own_experts or None),
    "average": lambda K, V, *_: FixedBlend(K, V),
}


def build(name: str, experts: int, tasks: int, *, seed: int = 0, config: RouterConfig | None = None) -> AskTell:
    """Make the router of this name; settings that it does not have are not asked for."""
    if name not in ROUTERS:
        raise ConfigError(f"unknown router {name!r}; {did_you_mean(name, ROUTERS)}known: {', '.join(ROUTERS)}")
    return ROUTERS[name](experts, tasks, seed, config or RouterConfig())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest of the known names, with a space behind; nothing where none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}? " if near else ""
