"""The service: everything below HTTP. Thread-safe; the queue's threads answer, one more runs the slots."""

import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import ConfigError, InputError, SettingsError
from tanbr.loop.choose import StartBlend
from tanbr.loop.learner import Learner, Rules, begun
from tanbr.loop.turn import first
from tanbr.merge import Moe
from tanbr.moe.device import device_of
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.router import AskTell, Tanbr
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.backends import Builder
from tanbr.serve.backends.choose import instructions
from tanbr.serve.check import Check, most_models
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.ids import RequestIds, slot_of
from tanbr.serve.journal import read_learner, read_pin, read_trust, state_file
from tanbr.serve.labels import label_space
from tanbr.serve.learner import LearnerThread
from tanbr.serve.lineage import Adoption, inherit, lineage, made_for
from tanbr.serve.overview import describe, model_views, practice_view, slot_view, version_view
from tanbr.serve.panel import Message
from tanbr.serve.practice import PracticeThread
from tanbr.serve.queue import Queue
from tanbr.serve.records import (
    ClientView,
    Feedback,
    GainView,
    Observer,
    Receipt,
    ServiceError,
    ServiceState,
    SlotView,
    VersionView,
)
from tanbr.serve.store import FeedbackRow, Store
from tanbr.serve.world import Alarms, ServedWorld
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray, Text, as_blend

Result = TypeVar("Result")
log = logging.getLogger("tanbr.serve")

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread tokenises; the cores are the model's
# The workers ask for the interpreter at every operation; others must not keep it for Python's 5 ms each time.
SWITCH_SECONDS = 0.0005
DEFAULT_SECONDS = 60.0  # of a slot, when neither its seconds nor its requests are given
ANSWERING_SHARE = 0.8  # of the time for a stop; the rest is for saving


class Service(Queue):
    """A queue that one merged model or a panel answers, and that follows the traffic and learns from rewards."""

    def __init__(
        self,
        moe: Moe,
        *,
        tasks: Sequence[Task],
        config: ServeConfig,
        state: Path,
        router: AskTell | None = None,
        monitor: Monitor | Callable[[], Monitor] | None = None,
        monitor_config: MonitorConfig | None = None,
        probes: Sequence[Row] = (),
        texts: Sequence[Text] = (),
        own_experts: Sequence[int] = (),
        check: Check | None = None,
        adopt: bool = False,
        say: Callable[[str], None] = log.warning,
        observer: Observer | None = None,
        backend: Builder | None = None,
        make_engine: Callable[..., Engine] = Engine,
    ) -> None:
        """Load the model, and resume what was learned in `state` (a folder, made if missing).

        `router` and `monitor` are for the first start; later ones go on with what was learned and the settings of
        `router` and `monitor_config` (the monitor's own if None). A state that cannot is refused, or with `adopt` goes
        on by names (`lineage.py`); `say` gets what is kept of it. `texts` are past requests, to judge a precision by;
        `own_experts` (V,) is the expert of each task. `backend` runs the models in place of the one that `config` names
        (`tanbr.engines`). An engine by `make_engine` whose `answers_here` is False has replicas elsewhere that answer
        (`tanbr.fleet`). Raises TanbrError for anything a user can put right.
        """
        if config.slot_requests is None and config.slot_seconds is None:
            config = config.model_copy(update={"slot_seconds": DEFAULT_SECONDS})
        device_of(config.device)  # before anything is written
        start = StartBlend(
            config.blend,
            experts=moe.num_experts,
            own_experts=own_experts,
            max_active=config.max_active,
            groups=() if check is None else check.taken.groups,
        )
        self.check, models = check, config.models or 1
        if config.models is None and config.memory is not None:
            models = most_models(moe, config.memory, config.precision)
        rules = Rules(config, start, models, config.seed)
        if config.engine is not None and backend is None:
            raise ConfigError("an engine needs a backend that talks to it: pass tanbr.engines.engine_builder(config)")
        K, names = moe.num_experts, [task.name for task in tasks]
        if isinstance(monitor, Monitor):
            monitor_config = monitor.config
        router = router or Tanbr(K, len(names), max_active=config.max_active, seed=config.seed)
        missing = [folder for folder in (state, *state.parents) if not folder.exists()]
        self.store = store = Store(state)
        with ExitStack() as undo:
            undo.callback(_undone, store, missing)
            wanted = made_for(moe, names)
            adoption = lineage(store, wanted, adopt=adopt)
            learner = None
            try:
                if adoption is None:
                    learner = _resumed(store, rules, router, monitor_config, experts=K, tasks=len(names))
            except SettingsError:
                if not adopt:
                    raise
                adoption = Adoption(wanted, wanted)
            asked = [config.backend, config.precision, *instructions(config.device)]
            kept = json.loads(store.meta("way") or "{}") if backend is None and adoption is None else {}
            same = kept.get("asked") == asked and "auto" in asked and "margin" in kept
            kept = kept if same else {}  # the same arithmetic at every start
            engine = make_engine(
                moe,
                models=rules.models,
                batch=config.batch,
                device=config.device,
                blend=None if learner is None else learner.slot.blend,
                version=0 if learner is None else learner.slot.versions[0],
                issued=store.last_version,
                slot=0 if learner is None else learner.slot.number,
                spare=backend is not None or not config.low_memory,
                backend=backend or kept.get("backend", config.backend),
                precision=kept.get("precision", config.precision),
                probes=() if kept else texts,
                max_length=config.max_length,
                merge_share=config.merge_share,
            )
            undo.callback(engine.close)
            first_one = engine.live.backend
            if kept:
                engine.judged(kept["agreement"], kept["margin"])
            elif first_one.chosen:
                say(first_one.chosen)
                way = {"backend": getattr(first_one, "name", ""), "precision": first_one.precision}
                way |= {"asked": asked, "agreement": first_one.agreement, "margin": first_one.margin}
                store.set_meta("way", json.dumps(way))
            if adoption is not None:
                adoption.carry_out(store, config.rewards, say=say)
            observer = observer or Observer()
            space = None if engine.writes else label_space(tasks, engine.columns)
            self._scored = space if config.rewards.labels > 0 else None  # where labels count as rewards
            answers = AnswerLog(store, keep_logits=self._scored is not None, tasks=len(names))
            alarm = Alarms(observer)
            world = ServedWorld(engine, store, answers, config=config, space=space, probes=probes, alarm=alarm)
            practises = space is not None and config.practice > 0 and engine.answers_here and backend is None
            if learner is not None:
                practice = begun(learner.router, len(names)) if practises else None
                world.resume(replace(learner, practice=practice))
            else:
                new = monitor or Monitor(names, config=monitor_config)
                recalled = inherit(store, router, new, names, monitor_config, past=probes, say=say)
                first(
                    rules, world, router=router, monitor=recalled, tasks=len(names), number=store.next_slot,
                    trust=read_trust(store), practises=practises, pin=read_pin(store),
                )  # fmt: skip
            store.set_meta("origin", json.dumps(moe.source.origin))
            self.learning = LearnerThread(world, opened=lambda: self.look_again())
            self._answers_of = answers.logits_of
            self.practising = None
            if space is not None and practises:
                self.practising = PracticeThread(self.learning, engine, space, busy=lambda: self.depth > 0)
            self.ids = RequestIds(store.key, store.begin_epoch(self.learner.slot.number))
            super().__init__(
                engine, self.ids, tasks=tasks, config=config, outbox=self.learning.put, observer=observer,
                slot_room=self.learning.room,
            )  # fmt: skip
            self.info = describe(moe, self, config=config, expert_names=wanted.experts)
            undo.pop_all()
        self._started = time.monotonic()
        self._ready = False
        self._refuses = False  # whether the last feedback could not be kept

    def start(self) -> None:
        """Start the threads; `ready` is true when this returns."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self.learning.start()
        if self.engine.answers_here:
            super().start()
        if self.practising is not None:
            self.practising.start()
        self._started = time.monotonic()
        self._ready = True

    def stop(self, timeout: float = 30.0) -> bool:
        """Refuse new requests, answer what was accepted, save; whether it all was done in time."""
        self._ready = False
        ends = time.monotonic() + timeout
        if self.practising is not None:
            self.practising.stop()
        answered = super().stop(ANSWERING_SHARE * timeout)
        ended = self.learning.stop(max(0.0, ends - time.monotonic()))
        if answered and ended:
            self.store.close()
            self.engine.close()
        return answered and ended and self.learning.saved

    def faults(self) -> tuple[str, ...]:
        """What is broken, a sentence each; none if all is well."""
        return super().faults() + self.learning.faults

    @property
    def learner(self) -> Learner:
        """All that is known now, as one value."""
        return self.learning.learner

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._ready and self.engine.available

    @property
    def client_secret(self) -> bytes:
        """What clients' keys are made with, the same after a restart and at every replica."""
        return hashlib.blake2b(self.store.key, person=b"clients", digest_size=16).digest()

    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt:
        """Take in rewards, and labels, scored by what was answered; they are on disk when this returns.

        `client` is an opaque key of who gives them. Raises InputError, with nothing taken in, for what makes no sense.
        """
        for item in items:
            self._check(item)
        answered = self._answers_of(self._labelled(items))
        rows = [self._row(item, answered, client) for item in items]
        kept = [row for row in rows if row is not None]
        try:
            taken = iter(self.store.add_feedback(kept) if kept else ())
        except ServiceError as error:
            self._observer.feedback("refused", len(items))
            if not self._refuses:  # a full disk may refuse thousands
                self.learning.alarms(f"feedback is refused: {error}")
            self._refuses = True
            raise
        self._refuses = self._refuses and not kept
        receipt = Receipt.of("unknown" if row is None else next(taken) for row in rows)
        for outcome, count in Counter(receipt.outcomes).items():
            self._observer.feedback(outcome, count)
        return receipt

    def awaits_answers(self, items: Sequence[Feedback]) -> bool:
        """Whether labels came for requests of ours whose answers a replica elsewhere has not yet told."""
        labelled = self._labelled(items)
        return len(labelled) > len(self._answers_of(labelled))

    def _known(self, item: Feedback) -> bytes | None:
        """The raw id of a request that this server answered in one of the slots that it keeps."""
        raw = self.ids.read(item.request_id)
        return raw if raw is not None and slot_of(raw) >= self.store.oldest else None

    def _labelled(self, items: Sequence[Feedback]) -> list[bytes]:
        """The raw ids of requests whose labels came, each once."""
        return list({key for item in items if item.label is not None and (key := self._known(item)) is not None})

    def _row(self, item: Feedback, answered: Mapping[bytes, FloatArray], client: str) -> FeedbackRow | None:
        """Score one piece by what was answered, logits (columns,); None if its request is not known."""
        key, task = self._known(item), None if item.task is None else self.info.tasks.index(item.task)
        if key is None or (item.label is not None and key not in answered):
            return None
        if self._scored is None or item.task is None or item.label is None:
            return FeedbackRow(key, "feedback", task, float(item.reward or 0.0), client)
        reward = self._scored.score(item.task, item.label, answered[key])
        return FeedbackRow(key, "labels", task, reward, client, self._scored.number_of(item.task, item.label))

    def _check(self, item: Feedback) -> None:
        if item.task is not None and item.task not in self.info.tasks:
            raise InputError(f"unknown task {item.task!r}; this server knows {', '.join(self.info.tasks)}")
        if (item.reward is None) == (item.label is None):
            raise InputError("feedback needs either a reward or a label")
        if item.reward is not None and not 0.0 <= item.reward <= 1.0:
            raise InputError(f"a reward must lie in [0, 1] (got {item.reward})")
        if item.label is not None:
            if self._scored is None:
                raise InputError("this server scores no labels; send a reward instead")
            if item.task is None:
                raise InputError("a label needs its task: labels of several tasks may have one name")
            self._scored.number_of(item.task, item.label)

    def put(self, message: Message) -> None:
        """Take what a replica elsewhere says."""
        self.learning.put(message)

    def state(self) -> ServiceState:
        """What the service is doing now: values that belong together."""
        view, answers, tasks = self.learning.view, self.learning.world.answers, self.info.tasks
        learner, last = view.learner, view.last
        models = tuple(model_views(learner, answers.held, tasks))
        return ServiceState(
            slot=learner.slot.number,
            merge_version=learner.slot.versions[0],
            task_mix=learner.slot.task_mix,
            blend=learner.slot.blend,
            reward=np.full(len(tasks), np.nan) if last is None else last.reward,
            counts=np.zeros(len(tasks)) if last is None else last.counts,
            estimated_regret=view.regret,
            requests=sum(model.requests for model in models),
            answered=answers.answered,
            queue=self.depth,
            phase=learner.phase,
            why=view.why,
            pinned=learner.pin is not None,
            shares=dict(view.shares),
            alarms=self.learning.alarms.newest,
            last_merge_seconds=self.engine.merge_seconds,
            last_pause_seconds=self.engine.pause_seconds,
            uptime=time.monotonic() - self._started,
            models=models,
            check=self.check,
            gain=None if learner.gain is None else GainView(**vars(learner.gain)),
            practice=practice_view(learner, view.kept),
        )

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first, those before slot `before` if it is given."""
        return [slot_view(row) for row in self.store.slots(before=before, limit=limit)]

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""
        return [version_view(row, self.engine) for row in self.store.versions()]

    def clients(self) -> list[ClientView]:
        """The clients that gave feedback, by name or opaque key, least trusted first."""
        trust = self.learner.trust
        found = [ClientView(one, trust.of(one), trust.leads(one)) for one in {*trust.evidence, *trust.led} - {""}]
        return sorted(found, key=lambda one: (one.trust, one.client))

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a version by its number, until `unpin`; blocks while it merges; its version."""
        wanted = target if isinstance(target, int) else as_blend(target, experts=self.info.experts)
        return self.call(lambda learning: learning.pin(wanted))

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self.call(LearnerThread.unpin)

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier version (None: the last good one) until the slot ends; the router hears of it."""
        return self.call(lambda learning: learning.roll_back(version))

    def end_slot(self) -> int:
        """End the slot now; blocks until the next is open, and gives its number. Raises ServiceError if it failed."""
        return self.call(LearnerThread.end_slot)

    def call(self, command: Callable[[LearnerThread], Result]) -> Result:
        """Let an operator's command run between two steps of the learner's thread; blocks until it is done."""
        return self.learning.call(lambda: command(self.learning))


def _undone(store: Store, made: Sequence[Path]) -> None:
    """Close the store of a start that failed; what the start has made goes, with folders that are empty without it."""
    if made:
        shutil.rmtree(made[0], ignore_errors=True)
    store.close()
    with suppress(OSError):  # somebody else has put something there
        for folder in made[1:]:
            folder.rmdir()


def _resumed(
    store: Store, rules: Rules, router: Any, config: MonitorConfig | None, *, experts: int, tasks: int
) -> Learner | None:
    """Read what was learned, to go on with the settings of now where a router can; None before the first slot."""
    if not store.untold():
        return None
    load = router.resumed if hasattr(router, "resumed") else router.load
    saved, monitor = load(state_file(store, "router")), Monitor.load(state_file(store, "monitor"), config=config)
    return read_learner(store, rules, saved, monitor, experts=experts, tasks=tasks)
