"""The methods of a comparison by name: each a server, a router and a source of the task mix around the same slot loop.

    tanbr   tanbr+probes   nucb+survey   tanbr+oracle   tanbr+regression   my_package.my_module:MyRouter+probes

`+probes` and `+survey` teach a router the reward of known blends before the first slot: each expert alone and the
uniform blend, or all that were surveyed. `+oracle` hands it the true mix instead of the monitor's forecast.
`+regression`, or another name of `merge/methods`, after any that chooses blends merges them by that method.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tanbr.baselines import ROUTERS, BestKnown, FixedBlend, build
from tanbr.baselines.fisher import fisher
from tanbr.baselines.probes import Probes, head_probes
from tanbr.baselines.regmean import regmean
from tanbr.baselines.survey import Survey
from tanbr.baselines.task_moe import TaskExperts
from tanbr.errors import ConfigError, DataError
from tanbr.experiments.answers import Answers, Blended, Merged, Server, Tagged, check_head
from tanbr.experiments.compare import KnownMix
from tanbr.experiments.corpus import Corpus
from tanbr.experiments.survey import survey_path
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.methods import METHODS, check_name
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
    surveys: Path | None = None  # the survey of averages; those of other methods lie beside it
    _others: dict[str, "Bench"] = field(default_factory=dict)

    def merging(self, method: str) -> "Bench":
        """Give the same with blends that are merged by another method."""
        if method == str(self.moe.method):
            return self
        if method not in self._others:
            self._others[method] = replace(self, moe=open_moe(self.moe.path, method=method), _others={})
        return self._others[method]

    @cached_property
    def survey(self) -> Survey | None:
        """The survey of blends that are merged as here, if there is one."""
        method = str(self.moe.method)
        path = self.surveys and survey_path(self.surveys, method)
        if path is None or (method != "average" and not path.exists()):
            return None
        return Survey.load(path).check(self.moe, self.corpus.tasks, path)

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
            method = str(self.moe.method)
            extra = "" if method == "average" else f" --method {method}"
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


def _made(make: Callable[..., Router]) -> Builder:
    return lambda bench, seed: (Blended(bench.answers), make(*bench.sizes, seed=seed))


def _named(name: str) -> Builder:
    def parts(bench: Bench, seed: int) -> Parts:
        config = bench.config.router.of_requests(bench.own_experts)
        return Blended(bench.answers), build(name, *bench.sizes, seed=seed, config=config)

    return parts


def _fixed(choose: Callable[[Bench], Any]) -> Builder:
    return lambda bench, _: (Blended(bench.answers), FixedBlend(*bench.sizes, blend=choose(bench)))


def _best_known(bench: Bench, _: int) -> Parts:
    known = bench.known
    return Blended(bench.answers), BestKnown(*bench.sizes, blends=known.blends, rewards=known.rewards)


def _merged(merge: Callable[[Moe, Probes], Any]) -> Builder:
    def build(bench: Bench, _: int) -> Parts:
        key = merge.__name__
        if key not in bench.answers.kept:
            rows = bench.corpus.first_held(STATISTICS)
            bench.answers.kept[key] = merge(
                bench.moe, head_probes(bench.moe, rows, space=bench.corpus.space, own=bench.own_experts)
            )
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
    **{name: Kind(router.about, _named(name), learns=router.learns) for name, router in ROUTERS.items()},
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
    merging: str = "average"  # how its blends are merged

    def bench(self, shared: Bench) -> Bench:
        """Choose how its blends are merged."""
        return shared.merging(self.merging)

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
            router.warm_start(known.blends[rows], known.rewards[rows], known.counts[rows])
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
    allowed = ["probes", "survey", "oracle"] if kind.learns else []
    ways = [name for name in METHODS if name != "average"] if kind.blends else []
    odd = [extra for extra in extras if extra not in allowed and extra.partition(":")[0] not in ways]
    if odd:
        may = ", ".join([*allowed, *ways]) or "nothing, as it neither learns nor chooses blends"
        raise ConfigError(f"method {text!r}: after {base}+ may follow {may} (got {odd[0]!r})")
    starts = [extra for extra in extras if extra in ("probes", "survey")]
    if len(starts) > 1:
        raise ConfigError(f"method {text!r}: one warm start, please")
    if kind.learns:
        warm_start = "probes" if "probes" in starts else "survey" if "survey" in starts else warm_start
        oracle = oracle or "oracle" in extras
    else:
        warm_start, oracle = "none", False
    merging = [check_name(extra) for extra in extras if extra not in allowed]
    if len(merging) > 1:
        raise ConfigError(f"method {text!r}: one way to merge, please")
    said = {warm_start: warm_start != "none", "oracle": oracle}
    name = "+".join([base, *merging, *(extra for extra, is_so in said.items() if is_so)])
    return Method(name, kind, warm_start, oracle, *merging)


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
    return Kind(f"{place}(K, V, seed=…)", _made(make), learns=True)
