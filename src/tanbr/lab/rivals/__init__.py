"""Rivals, one file each, behind the interface of what they rival; routers by name. To add one: a file, a line here."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tanbr.errors import ConfigError
from tanbr.lab.rivals.nucb import Nucb
from tanbr.lab.rivals.rules import BestKnown, FixedBlend, Proportional, RandomBlend
from tanbr.lab.rivals.vector_gp import VectorGP
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.types import Router

__all__ = ["ROUTERS", "BestKnown", "FixedBlend", "Nucb", "Proportional", "RandomBlend", "VectorGP", "build", "kind"]

Build: TypeAlias = Callable[[int, int, int, RouterConfig], Router]  # of K, V, seed and settings


@dataclass(frozen=True)
class Kind:
    """A router before it is built."""

    about: str
    build: Build
    learns: bool = True


ROUTERS: dict[str, Kind] = {
    "tanbr": Kind("the router of this project", lambda K, V, seed, c: Tanbr(K, V, seed=seed, config=c)),
    "paper": Kind("Algorithm 1 as printed", lambda K, V, seed, c: Tanbr(K, V, mode="paper", seed=seed, config=c)),
    "nucb": Kind("neural UCB over 20 random blends a slot", lambda K, V, seed, _: Nucb(K, V, seed=seed)),
    "vector-gp": Kind("a plain Gaussian process over 1000 blends", lambda K, V, seed, _: VectorGP(K, V, seed=seed)),
    "random": Kind("a random blend every slot", lambda K, V, seed, _: RandomBlend(K, V, seed=seed), learns=False),
    "proportional": Kind(
        "every expert at its task's share of the mix",
        lambda K, V, _, c: Proportional(K, V, own=c.default.own_experts or None),
        learns=False,
    ),
    "average": Kind("all experts alike", lambda K, V, *_: FixedBlend(K, V), learns=False),
}


def build(name: str, experts: int, tasks: int, *, seed: int = 0, config: RouterConfig | None = None) -> Router:
    """Make the router of this name; settings that it does not have are not asked for."""
    return kind(name).build(experts, tasks, seed, config or RouterConfig())


def kind(name: str) -> Kind:
    """Find a router by its name, or say which there are."""
    if name not in ROUTERS:
        near = difflib.get_close_matches(name, ROUTERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown router {name!r}; {hint}known: {', '.join(ROUTERS)}")
    return ROUTERS[name]
