"""The methods of a comparison by name: each a server, a router and a source of the task mix around the same slot loop.

    tanbr   tanbr+probes   nucb+survey   tanbr+oracle   tanbr+regression   my_package.my_module:MyRouter+probes

`+probes` and `+survey` teach a router the reward of known blends before the first slot: each expert alone and the
uniform blend, or all that were surveyed. `+oracle` hands it the true mix instead of the monitor's forecast.
`+regression`, after any method that chooses blends, merges them by regression (`merge/regression.py`).
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from tanbr.baselines import BestKnown, FixedBlend, Nucb, Proportional, RandomBlend, VectorGP
from tanbr.baselines.fisher import fisher
from tanbr.baselines.probes import Probes, head_probes
from tanbr.baselines.regmean import regmean
from tanbr.baselines.task_moe import TaskExperts
from tanbr.errors import ConfigError, DataError
from tanbr.experiments.answers import Answers, Blended, Merged, Server, Tagged, check_head
from tanbr.experiments.compare import KnownMix
from tanbr.experiments.corpus import Corpus
from tanbr.experiments.survey import Survey
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.router import Tanbr
from tanbr.serve.loop import MixSource, SlotLoop
from tanbr.settings import Config
from tanbr.tasks.card import read_card
from tanbr.types import FloatArray, Router

STATISTICS = 64  # held rows a task behind the statistics of fisher and regmean
WarmStart: TypeAlias = Literal["none", "probes", "survey"]


@dataclass(frozen=True, eq=False)
class Bench:
    """What all methods of a process share."""

    moe: Moe
    corpus: Corpus
    config: Config
    survey: Survey | None = None
    regressed: Survey | None = None  # of blends that are merged by regression

    @cached_property
    def by_regression(self) -> "Bench":
        """The same with blends that are merged by regression."""
        return Bench(open_moe(self.moe.path, regression=True), self.corpus, self.config, self.regressed)

    @property
    def sizes(self) -> tuple[int, int]:
        """K and V."""
        return self.moe.num_experts, len(self.corpus.tasks)

    @property
    def own_experts(self) -> tuple[int, ...]:
        """The expert of each task, if the checkpoint says so."""
        return read_card(self.moe.path).experts_of([task.name for task in self.corpus.tasks])

    @cached_property
    def answers(self) -> Answers:
        """The one model, and every answer it has given."""
        answers = Answers(self.moe)
        check_head(answers.model, self.corpus.space)
        return answers

    @property
    def known(self) -> Survey:
        """The survey; refused where there is none."""
        if self.survey is None:
            extra = " --regression" if self.moe.grams is not None else ""
            raise DataError(
                f"best-fixed, best-per-slot and warm starts need a survey: make one with `tanbr survey{extra}`"
            )
        return self.survey


Parts: TypeAlias = tuple[Server, Router]
Builder: TypeAlias = Callable[[Bench, int], Parts]  # of a seed


@dataclass(frozen=True)
class Kind:
    """A method before it is built."""

    about: str
    build: Builder
    learns: bool = False
    blends: bool = True  # whether what it serves is the merge of a blend
    told: bool = False  # whether it is always told the true mix
    surveyed: bool = False  # whether it needs a survey


def _router(make: Callable[..., Router], **options: Any) -> Builder:
    return lambda bench, seed: (Blended(bench.answers), make(*bench.sizes, seed=seed, **options))


def _fixed(choose: Callable[[Bench], Any]) -> Builder:
    return lambda bench, _: (Blended(bench.answers), FixedBlend(*bench.sizes, blend=choose(bench)))


def _tanbr(mode: Literal["default", "paper"]) -> Builder:
    return lambda bench, seed: (
        Blended(bench.answers),
        Tanbr(*bench.sizes, mode=mode, seed=seed, config=bench.config.router.of_requests(bench.own_experts)),
    )


def _proportional(bench: Bench, _: int) -> Parts:
    return Blended(bench.answers), Proportional(*bench.sizes, own=bench.own_experts or None)


def _best_known(bench: Bench, _: int) -> Parts:
    known = bench.known
    return Blended(bench.answers), BestKnown(*bench.sizes, blends=known.blends, rewards=known.rewards)


def _merged(merge: Callable[[Moe, Probes], Any]) -> Builder:
    def build(bench: Bench, _: int) -> Parts:
        key = merge.__name__
        if key not in bench.answers.kept:
            rows = bench.corpus.first_held(STATISTICS)
            bench.answers.kept[key] = merge(bench.moe, head_probes(bench.moe, rows, space=bench.corpus.space))
        return Merged(bench.answers, key), FixedBlend(*bench.sizes)

    return build


def _tagged(blends: Callable[[Bench], FloatArray]) -> Builder:
    def build(bench: Bench, _: int) -> Parts:
        K, V = bench.sizes
        if K != V:
            raise ConfigError(f"tags need one expert a task, in the tasks' order (got {K} experts and {V} tasks)")
        task_of = {row.text: v for v, task in enumerate(bench.corpus.tasks) for row in bench.corpus.stream[task.name]}
        return Tagged(bench.answers, task_of, blends(bench)), FixedBlend(K, V)

    return build


def _two_experts(bench: Bench) -> FloatArray:
    K = bench.moe.num_experts
    return TaskExperts.most_helpful(bench.known.rewards[:K].T, per_task=2, own=range(K)).blends


KINDS: dict[str, Kind] = {
    "tanbr": Kind("the router of this project", _tanbr("default"), learns=True),
    "paper": Kind("Algorithm 1 as printed", _tanbr("paper"), learns=True),
    "nucb": Kind("neural UCB over 20 random blends a slot", _router(Nucb), learns=True),
    "vector-gp": Kind("a plain Gaussian process over 1000 blends", _router(VectorGP), learns=True),
    "random": Kind("a random blend every slot", _router(RandomBlend)),
    "proportional": Kind("every expert at its task's share of the mix", _proportional),
    "average": Kind("all experts alike", _fixed(lambda _: None)),
    "fisher": Kind("experts weighted by their Fisher information", _merged(fisher), blends=False),
    "regmean": Kind("every linear layer by regression on its inputs", _merged(regmean), blends=False),
    "best-fixed": Kind(
        "the best surveyed blend, found with labels", _fixed(lambda b: b.known.best_fixed), surveyed=True
    ),
    "best-per-slot": Kind("the best surveyed blend for the true mix", _best_known, told=True, surveyed=True),
    "task-merging": Kind(
        "two experts a task, merged, with true tags", _tagged(_two_experts), told=True, surveyed=True, blends=False
    ),
    "tags": Kind(
        "the un-merged MoE with every request's true tag",
        _tagged(lambda b: np.eye(b.sizes[0])),
        told=True,
        blends=False,
    ),
}


@dataclass(frozen=True)
class Method:
    """A method as it was asked for."""

    name: str  # as results call it
    kind: Kind
    warm_start: WarmStart = "none"
    oracle: bool = False
    regression: bool = False

    def bench(self, shared: Bench) -> Bench:
        """Choose how its blends are merged."""
        return shared.by_regression if self.regression else shared

    @property
    def surveyed(self) -> bool:
        """Whether it needs a survey."""
        return self.kind.surveyed or self.warm_start != "none"

    def loop(self, bench: Bench, *, mixes: FloatArray, seed: int) -> SlotLoop:
        """Build it for a stream with these mixes (slots, V)."""
        bench = self.bench(bench)
        server, router = self.kind.build(bench, seed)
        if self.warm_start != "none":
            known, probes = bench.known, bench.moe.num_experts + 1
            rows = slice(probes if self.warm_start == "probes" else None)
            router.warm_start(known.blends[rows], known.rewards[rows], known.counts[rows])  # type: ignore[attr-defined]
        source: MixSource = (
            KnownMix(mixes)
            if self.kind.told or self.oracle
            else bench.corpus.taught_monitor(bench.config.monitor, seed=seed)
        )
        return SlotLoop(server, router, source, bench.sizes[1])  # type: ignore[arg-type]


def method(text: str, *, warm_start: WarmStart = "none", oracle: bool = False) -> Method:
    """Read a method's name; `warm_start` and `oracle` hold for those that learn and do not say otherwise."""
    base, *extras = text.strip().split("+")
    kind = _third_party(base) if ":" in base else KINDS.get(base)
    if kind is None:
        near = difflib.get_close_matches(base, KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown method {base!r}; {hint}known: {', '.join(KINDS)}, or package.module:Router")
    allowed = (["probes", "survey", "oracle"] if kind.learns else []) + (["regression"] if kind.blends else [])
    odd = [extra for extra in extras if extra not in allowed]
    if odd:
        may = ", ".join(allowed) or "nothing, as it neither learns nor chooses blends"
        raise ConfigError(f"method {text!r}: after {base}+ may follow {may} (got {odd[0]!r})")
    starts = [extra for extra in extras if extra in ("probes", "survey")]
    if len(starts) > 1:
        raise ConfigError(f"method {text!r}: one warm start, please")
    if kind.learns:
        warm_start = "probes" if "probes" in starts else "survey" if "survey" in starts else warm_start
        oracle = oracle or "oracle" in extras
    else:
        warm_start, oracle = "none", False
    regression = "regression" in extras
    said = {"regression": regression, warm_start: warm_start != "none", "oracle": oracle}
    name = "+".join([base, *(extra for extra, is_so in said.items() if is_so)])
    return Method(name, kind, warm_start, oracle, regression)


def methods(texts: Sequence[str], *, warm_start: WarmStart = "none", oracle: bool = False) -> list[Method]:
    """Read the names of methods, each once, in their order."""
    found = [method(text, warm_start=warm_start, oracle=oracle) for text in texts if text.strip()]
    if not found:
        raise ConfigError(f"no methods to compare; known: {', '.join(KINDS)}")
    return list({one.name: one for one in found}.values())


def _third_party(place: str) -> Kind:
    module, _, name = place.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"method {place!r} cannot be imported ({error}); it must be package.module:Router") from None
    return Kind(f"{place}(K, V, seed=…)", _router(make), learns=True)
