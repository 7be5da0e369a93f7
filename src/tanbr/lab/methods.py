"""The methods of a comparison by name: each a server, a router and a source of the task mix, slot by slot.

    tanbr   tanbr+probes   nucb+survey   tanbr+oracle   tanbr+regression   tanbr@2   my_package.module:MyRouter+probes

`@2` holds a panel of two models, each request to one of them. `+probes` and `+survey` teach a router the
reward of known blends before the first slot: each expert alone and the uniform blend, or all that were surveyed.
`+oracle` hands it the true mix instead of the monitor's forecast, `+recognised` every request's true task but no mix.
`+unpractised` leaves practice on logged requests off, so that blends are tried on users.
`+regression`, or another name of `merge/methods`, after any that chooses blends merges them by that method.
`dense:FOLDER` is a dense checkpoint, answering as it is.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import Corpus
from tanbr.lab.oracle import Oracle
from tanbr.lab.rivals import LEARNING, ROUTERS, BestKnown, FixedBlend, Proportional, build, did_you_mean
from tanbr.lab.rivals.fisher import fisher
from tanbr.lab.rivals.probes import Probes, probes_of
from tanbr.lab.rivals.regmean import regmean
from tanbr.lab.settings import Config
from tanbr.lab.survey import Survey, survey_path
from tanbr.lab.train.checkpoints import card_of, own_experts
from tanbr.lab.world import Contestant, Credit, Respond, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.merge import Moe
from tanbr.merge.methods import METHODS, check_name
from tanbr.monitor import Monitor
from tanbr.router.own import OwnRouter
from tanbr.router.shell import AskTell
from tanbr.serve.backends.choose import Precision
from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import Answer
from tanbr.types import AnswersBy, Blend, FloatArray, Text

AVERAGE = "average"
DENSE = "dense:"  # before the folder of a dense checkpoint
PRACTICE = 320  # a tenth of a core's time in slots of 20 seconds, at the 160 texts a second of a MiniLM on one core
Card: TypeAlias = Literal["true", "none", "swapped"]
SIMILAR = 200  # past texts of a task that are compared with others'
STATISTICS = 64  # held rows per task behind the statistics of fisher and regmean
KNOWLEDGE = ("probes", "survey", "oracle", "recognised", "unpractised")  # that may follow a name, in this order
STARTS = {"probes", "survey"}  # what is learned before the first slot


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What clients send, what routers are told, and how models compute."""

    answers: AnswersBy = "posterior"  # as served
    rewards: Credit = "labels"  # what clients send back
    card: Card = "true"  # what routers are told of experts and tasks: the truth, nothing, or two tasks the wrong way
    practice: int = PRACTICE  # logged requests a slot that routers which practise try blends on
    disjoint: bool = False  # rewards come for half of the rows, and the figures count the other half
    precision: Precision = "fp32"  # of the arithmetic of all models


class Answers:
    """One model for all methods, and every answer it has given: each text once under a blend."""

    def __init__(self, model: DenseModel) -> None:
        self.model = model
        self.kept: dict[str, nn.Module] = {}  # merges that are no blend, by name
        self._known: dict[bytes | str, dict[Text, Answer]] = {}
        self._held: bytes | str | None = None  # what the model holds now

    def of(self, what: Blend | str, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts with a blend (K,), or with a merge that is kept under a name."""
        key = what if isinstance(what, str) else what.tobytes()
        known = self._known.setdefault(key, {})
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            if key != self._held:
                self._held = None  # an exception on the way leaves the model in doubt
                self.model.put(self.kept[what]) if isinstance(what, str) else self.model.swap(what)
                self._held = key
            known.update(zip(new, self.model.answers(new), strict=True))
        return [known[text] for text in texts]

    def each(self, blends: Sequence[Blend] | FloatArray, of: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Answer text i with the blend whose number is of[i]."""
        found: dict[Text, Answer] = {}
        for number in np.unique(of):
            own = [text for text, one in zip(texts, of, strict=True) if one == number]
            found |= zip(own, self.of(blends[number], own), strict=True)
        return [found[text] for text in texts]


@dataclass(frozen=True, eq=False)
class Bench(Conditions):
    """What all methods of a process share."""

    moe: Moe
    corpus: Corpus
    config: Config
    surveys: Path | None = None  # the survey of averages; those of other methods lie beside it
    _others: dict[str, "Bench"] = field(default_factory=dict, init=False)
    _dense: dict[Path, Answers] = field(default_factory=dict, init=False)

    def merging(self, method: str) -> "Bench":
        """Give the same with blends that are merged by another method."""
        if method == str(self.moe.method):
            return self
        if method not in self._others:
            self._others[method] = replace(self, moe=Moe(self.moe.source, method=method, device=str(self.moe.device)))
        return self._others[method]

    @cached_property
    def survey(self) -> Survey | None:
        """The survey of blends that are merged as here, if there is one."""
        if self.surveys is None:
            return None
        path = survey_path(self.surveys, str(self.moe.method), answers_by=self.answers)
        if not path.exists():
            return None
        return Survey.load(path).check(self.moe, self.corpus.tasks, path, answers_by=self.answers)

    @property
    def known(self) -> Survey:
        """The survey; refused where there is none."""
        if self.survey is None:
            asked = {"method": str(self.moe.method), "answers": self.answers}
            words = "".join(
                f" --{name} {value}" for name, value in asked.items() if value not in (AVERAGE, "posterior")
            )
            raise DataError(
                f"best-fixed, best-per-slot and warm starts need a survey: make one with `tanbr survey{words}`"
            )
        return self.survey

    @property
    def sizes(self) -> tuple[int, int]:
        """K and V."""
        return self.moe.num_experts, len(self.corpus.tasks)

    @property
    def own_experts(self) -> tuple[int, ...]:
        """The expert of each task, if the checkpoint says so."""
        return own_experts(self.moe, [task.name for task in self.corpus.tasks])

    @property
    def told_experts(self) -> tuple[int, ...]:
        """The expert of each task, as far as routers are told."""
        first, second, *others = self.own_experts or (0, 0)
        return {"true": self.own_experts, "none": (), "swapped": (second, first, *others)}[self.card]

    @cached_property
    def task_of(self) -> dict[Text, int]:
        """The true task of every text of the stream."""
        return {row.text: v for v, task in enumerate(self.corpus.tasks) for row in self.corpus.stream[task.name]}

    @cached_property
    def model(self) -> Answers:
        """The one model, and every answer it has given."""
        return Answers(DenseModel(self.moe, self.corpus.space, precision=self.precision))

    def holding(self, folder: Path) -> Answers:
        """Give another model of the same architecture, with the weights of a dense checkpoint, and its answers."""
        if folder not in self._dense:
            model = DenseModel(self.moe, self.corpus.space, precision=self.precision)
            model.become(folder)
            self._dense[folder] = Answers(model)
            self._dense[folder].kept[DENSE] = model.model
        return self._dense[folder]


Make: TypeAlias = Callable[[Bench, int], AskTell]  # of a seed
Responder: TypeAlias = Callable[[Bench], Respond]


@dataclass(frozen=True)
class Kind:
    """A method before it is built: a router of blends, and what answers by them."""

    router: Make = lambda bench, _: FixedBlend(*bench.sizes)
    respond: Responder = lambda bench: bench.model.each
    learns: bool = False
    blends: bool = True  # whether what it serves is the merge of a blend
    panels: bool = False  # whether it can hold several models, as whatever learns and blends can
    whole: bool = False  # whether it always holds all experts
    told: bool = False  # whether it is always told the true mix
    tagged: bool = False  # whether it is told every request's task
    surveyed: bool = False  # whether it needs a survey
    source: str | None = None  # digest of the module that a router of one's own is in

    @property
    def fills_panels(self) -> bool:
        """Whether a number of models may be asked for."""
        return self.panels or (self.learns and self.blends)


def _named(name: str) -> Make:
    return lambda b, seed: build(name, *b.sizes, seed=seed, config=b.config.router.of_requests(b.told_experts))


def _proportional(bench: Bench, _: int) -> AskTell:
    if bench.card == "none":
        raise ConfigError("proportional blends by the experts' tasks; leave it out, or --card none")
    return _named("proportional")(bench, 0)


def _base(bench: Bench, _: int) -> AskTell:
    if not bench.moe.source.with_base:
        raise ConfigError("base needs experts over a base that may take weight (base = true in the list of experts)")
    return FixedBlend(*bench.sizes, blend=np.eye(bench.sizes[0])[-1])


def _similar(bench: Bench, _: int) -> AskTell:
    (K, V), names = bench.sizes, [task.name for task in bench.corpus.tasks]
    of = {name: place for place, name in enumerate(card_of(bench.moe).expert_tasks) if name in names}
    if not of:
        raise ConfigError(f"similar needs the tasks of experts, and {bench.moe.path} does not name them")
    monitor = Monitor(list(of), config=bench.config.monitor)
    texts = {name: [row.text for row in bench.corpus.held[name][:SIMILAR]] for name in names}
    for name in of:
        monitor.learn(texts[name], [name] * len(texts[name]))
    own = np.zeros((V, K))
    for v, name in enumerate(names):
        like = monitor.snapshot().recognise(texts[name]).posteriors.mean(axis=0)
        own[v, list(of.values())] = np.array([one == name for one in of]) if name in of else like
    return Proportional(K, V, own=own)


def _best_known(bench: Bench, *, even: bool = False) -> AskTell:
    K, V = bench.sizes
    mix = np.full(V, 1 / V) if even else None
    return BestKnown(K, V, blends=bench.known.blends, rewards=bench.known.rewards, mix=mix)


def _merged(merge: Callable[[Moe, Probes], Any]) -> Responder:
    """Serve a merge that is no blend, made from the statistics of held rows."""

    def respond(bench: Bench) -> Respond:
        key = merge.__name__
        if key not in bench.model.kept:
            rows = bench.corpus.first_held(min(STATISTICS, *map(len, bench.corpus.held.values())))
            probes = probes_of(bench.moe, rows, space=bench.corpus.space, own=bench.own_experts)
            bench.model.kept[key] = merge(bench.moe, probes)
        return lambda _, __, texts: bench.model.of(key, texts)

    return respond


def _tagged(blends: Callable[[Bench], FloatArray]) -> Responder:
    """Answer each request with the blend of its true task: one-hot blends (V, K) are the un-merged MoE."""

    def respond(bench: Bench) -> Respond:
        own = blends(bench)
        return lambda _, __, texts: bench.model.each(
            own, np.array([bench.task_of[text] for text in texts], np.intp), texts
        )

    return respond


def _own_blends(bench: Bench) -> FloatArray:
    """Each task's own expert (V, K)."""
    if not bench.own_experts:
        raise ConfigError(
            f"tags need an expert a task, and {bench.moe.path} does not say which expert learned which; "
            "write it into its tanbr.json"
        )
    return np.eye(bench.sizes[0])[list(bench.own_experts)]


def _two_experts(bench: Bench) -> FloatArray:
    """Each task's own expert and, of the others, the one worth most to it by the survey, half each (V, K)."""
    own = _own_blends(bench)
    others = np.where(own > 0, -np.inf, bench.known.rewards[: len(own[0])].T)  # (V, K), each expert's reward alone
    return (own + np.eye(len(own[0]))[others.argmax(axis=1)]) / 2


KINDS: dict[str, Kind] = {
    **{name: Kind(_named(name), learns=name in LEARNING) for name in ROUTERS},
    "proportional": Kind(_proportional, panels=True),  # each expert at the share of its tasks
    "base": Kind(_base),  # the base alone, where it is an expert: the last one
    # by the mix, a task without an expert by how much its past texts are like those of each expert's task
    "similar": Kind(_similar),
    "fisher": Kind(respond=_merged(fisher), blends=False),
    "regmean": Kind(respond=_merged(regmean), blends=False),
    # the best surveyed blend: for all tasks alike, found with labels; and for every slot's true mix
    "best-fixed": Kind(lambda b, _: _best_known(b, even=True), surveyed=True, panels=True),
    "best-per-slot": Kind(lambda b, _: _best_known(b), told=True, surveyed=True, panels=True),
    # with every request's true tag: two experts of the task merged, or the un-merged MoE
    "task-merging": Kind(respond=_tagged(_two_experts), told=True, surveyed=True, blends=False, tagged=True),
    "tags": Kind(respond=_tagged(_own_blends), told=True, blends=False, tagged=True),
    # the un-merged MoE, each request to the expert of the task it is recognised as
    "untagged": Kind(
        lambda b, _: BestKnown(*b.sizes, blends=np.eye(b.sizes[0]), rewards=_own_blends(b).T), blends=False, whole=True
    ),
}


@dataclass(frozen=True)
class ComparedMethod:
    """A method as it was asked for."""

    name: str  # as results call it
    kind: Kind
    knows: tuple[str, ...] = ()  # of KNOWLEDGE
    merging: str = AVERAGE  # how its blends are merged
    models: int = 1  # G

    @property
    def dense(self) -> Path | None:
        """The folder of a dense checkpoint that answers as it is."""
        return Path(self.name.removeprefix(DENSE)) if self.name.startswith(DENSE) else None

    @property
    def surveyed(self) -> bool:
        """Whether it needs a survey."""
        return self.kind.surveyed or not STARTS.isdisjoint(self.knows)

    def contestant(self, bench: Bench, *, mixes: FloatArray, seed: int) -> Contestant:
        """Build it for a stream with these mixes (slots, V)."""
        bench = bench.merging(self.merging)
        K, _ = bench.sizes
        if not 1 <= self.models <= K:
            raise ConfigError(f"{self.name}: a panel holds 1 to {K} models (got {self.models})")
        respond, router = self.kind.respond(bench), self.kind.router(bench, seed)
        theirs: Any = getattr(router, "theirs", router)
        if self.models > 1 and "models" not in inspect.signature(theirs.ask).parameters:
            raise ConfigError(f"{self.name} cannot fill a panel: its ask takes no argument `models`")
        if not STARTS.isdisjoint(self.knows):
            if not hasattr(theirs, "warm_start"):
                raise ConfigError(f"{self.name}: a warm start needs a method warm_start(blends, rewards, counts)")
            known, rows = bench.known, slice(K + 1 if "probes" in self.knows else None)
            teacher: Any = router
            teacher.warm_start(known.blends[rows], known.rewards[rows], known.counts[rows])
        own = bench.told_experts if self.kind.learns else ()
        return Contestant(
            StreamWorld(
                respond, bench.corpus.space,
                answering=bench.corpus.space.by_posterior if bench.answers == "posterior" else None,
                credit=bench.rewards, disjoint=bench.disjoint,
                practice=0 if "unpractised" in self.knows else bench.practice,
            ),
            router,
            self._mix_source(bench, mixes, seed),
            start=StartBlend(None, experts=K, own_experts=own),
            models=K if self.kind.whole else self.models,
            config=LoopConfig(explore="careful" if self.kind.learns else "always"),
        )  # fmt: skip

    def _mix_source(self, bench: Bench, mixes: FloatArray, seed: int) -> Any:
        told, recognised = self.kind.told or "oracle" in self.knows, self.kind.tagged or "recognised" in self.knows
        monitor = None
        if not told or (not recognised and (self.models > 1 or bench.answers == "posterior")):
            monitor = bench.corpus.taught_monitor(bench.config.monitor, seed=seed)
        if not told and not recognised:
            return monitor
        return Oracle(monitor, mixes=mixes if told else None, task_of=bench.task_of if recognised else None)


def method(text: str, *, models: int = 1, merging: str = AVERAGE) -> ComparedMethod:
    """Read a method's name; `models` and `merging` hold where it does not say otherwise."""
    text = text.strip()
    if text.startswith(DENSE):
        return ComparedMethod(text, _dense(Path(text.removeprefix(DENSE))))
    place, *extras = text.split("+")
    base, at, count = place.partition("@")
    kind = _third_party(base) if ":" in base else KINDS.get(base)
    if kind is None:
        known = f"{', '.join(KINDS)}, dense:FOLDER, or package.module:Router"
        raise ConfigError(f"unknown method {base!r}; {did_you_mean(base, KINDS)}known: {known}")
    allowed = ["probes", "survey", "oracle", "unpractised"] if kind.learns else []
    allowed += ["recognised"] if kind.fills_panels or kind.whole else []
    ways = list(METHODS) if kind.blends else []
    odd = [extra for extra in extras if extra not in allowed and extra.partition(":")[0] not in ways]
    if odd:
        may = ", ".join([*allowed, *ways]) or "nothing, as it neither learns nor chooses blends"
        raise ConfigError(f"method {text!r}: after {base}+ may follow {may} (got {odd[0]!r})")
    if set(extras) >= STARTS:
        raise ConfigError(f"method {text!r}: one warm start, please")
    told = [extra for extra in extras if extra not in allowed]
    if len(told) > 1:
        raise ConfigError(f"method {text!r}: one way to merge, please")
    way = check_name(told[0] if told else merging) if kind.blends else AVERAGE
    if at and not (count.isdigit() and int(count) and kind.fills_panels):
        reason = "a whole number of models from 1 must follow @" if kind.fills_panels else f"{base} fills no panel"
        raise ConfigError(f"method {text!r}: {reason}")
    models = int(count) if at else models if kind.fills_panels else 1
    knows = tuple(one for one in KNOWLEDGE if one in extras)
    name = "+".join([base if models == 1 else f"{base}@{models}", *([way] * (way != AVERAGE)), *knows])
    return ComparedMethod(name, kind, knows, merging=way, models=models)


def methods(texts: Sequence[str], *, models: Sequence[int] = (1,), merging: str = AVERAGE) -> list[ComparedMethod]:
    """Read the names of methods, each once, in their order; once for each number of `models` it can hold."""
    found = [method(text, models=count, merging=merging) for text in texts if text.strip() for count in models]
    if not found:
        raise ConfigError(f"no methods to compare; known: {', '.join(KINDS)}")
    return list({one.name: one for one in found}.values())


def _dense(folder: Path) -> Kind:
    return Kind(respond=lambda bench: lambda _, __, texts: bench.holding(folder).of(DENSE, texts), blends=False)


def _third_party(place: str) -> Kind:
    module, _, name = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # behind all others: no module of theirs hides one that is installed
    try:
        make = getattr(import_module(module), name)
    except Exception as error:  # whatever their module does when it is imported
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"method {place!r} cannot be imported ({said}); it must be package.module:Router") from None
    source = hashlib.sha256(inspect.getsource(sys.modules[module]).encode()).hexdigest()[:16]
    return Kind(
        lambda b, seed: OwnRouter(make, *b.sizes, seed=seed, own_experts=b.told_experts), learns=True, source=source
    )
