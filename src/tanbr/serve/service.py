"""The service: everything below HTTP. Thread-safe; two threads answer, one runs the slots."""

import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.monitor import Monitor
from tanbr.router import Tanbr, TreeView
from tanbr.serve.batcher import Batcher, Job
from tanbr.serve.buffer import parameters_and_bytes
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.guard import Guard
from tanbr.serve.ids import RequestIds, slot_of
from tanbr.serve.intake import Intake
from tanbr.serve.keeper import Keeper
from tanbr.serve.labels import label_space
from tanbr.serve.loop import SlotLoop
from tanbr.serve.records import (
    Answered,
    Feedback,
    Generated,
    Observer,
    OnToken,
    Outcome,
    Receipt,
    ServiceInfo,
    ServiceState,
    Silent,
    SlotView,
    Stopping,
    VersionView,
)
from tanbr.serve.shadow import Shadow
from tanbr.serve.store import FeedbackRow, Store
from tanbr.tasks.rows import Row, Task
from tanbr.types import Router, SlotRecord, Text, as_blend

# The model thread asks for the interpreter at every operation; others must not keep it for Python's 5 ms each time.
SWITCH_SECONDS = 0.0005
DEFAULT_SECONDS = 60.0  # of a slot, when neither its seconds nor its requests are given


class Service:
    """Answers requests with one merged model, follows the traffic, and learns from rewards."""

    def __init__(
        self,
        moe: Moe,
        *,
        tasks: Sequence[Task],
        config: ServeConfig,
        state: Path,
        router: Router | None = None,
        monitor: Monitor | None = None,
        probes: Sequence[Row] = (),
        observer: Observer | None = None,
    ) -> None:
        """Load the model, and resume from `state` (a folder, made if missing) what was learned there before.

        `router` and `monitor` are for the first start; a state that is there already wins. Raises TanbrError for
        anything a user can put right. `serve.build.build` makes a service of a checkpoint's path and a configuration.
        """
        if config.slot_requests is None and config.slot_seconds is None:
            config = config.model_copy(update={"slot_seconds": DEFAULT_SECONDS})
        self._config, self._tasks = config, tuple(tasks)
        self._observer = observer or Silent()
        names = [task.name for task in tasks]
        self._store = Store(state)
        self._store.check_fits(tasks=names, experts=moe.num_experts)
        rows = self._store.untold()
        open_slot = rows[-1] if rows else None
        self._engine = Engine(
            moe,
            batch=config.batch,
            device=config.device,
            blend=None if open_slot is None else open_slot["blend"],
            version=0 if open_slot is None else open_slot["version"],
            issued=max((row["version"] for row in self._store.versions()), default=0),
            slot=0 if open_slot is None else open_slot["slot"],
            spare=not config.low_memory,
            precision=config.precision,
            probes=[row.text for row in probes],
            int8_agreement=config.int8_agreement,
            max_length=config.max_length,
            merge_share=config.merge_share,
        )
        self._text = self._engine.writes
        self._space = None if self._text else label_space(self._tasks, self._engine.columns)
        columns = () if self._text else self._engine.columns
        classes = len(columns) if self._space is None else self._space.classes
        if open_slot is not None:
            router = Tanbr.load(state / self._store.meta("router")) if router is None else _loaded(router, self._store)
            monitor = Monitor.load(state / self._store.meta("monitor"))
        elif router is None:
            router = Tanbr(moe.num_experts, len(names), max_active=config.max_active, seed=config.seed)
        monitor = monitor or Monitor(names, "clusters")
        loop = SlotLoop(self._engine, router, monitor, len(names), slot=self._engine.live.slot)
        intake = Intake(
            self._store,
            config=config,
            encode=self._engine.encode,
            shadow=Shadow(moe) if config.rewards.shadow else None,
            classes=classes,
            keep_logits=config.rewards.labels > 0 and self._space is not None,
            tasks=len(names),
        )
        guard = Guard(config.guard, self._engine, self._space, probes, tasks=names)
        self._keeper = Keeper(loop, self._store, intake, guard, config=config, observer=self._observer)
        if open_slot is None:
            self._keeper.first()
        else:
            self._keeper.resume(rows)
        self._ids = RequestIds(self._store.meta("key"))
        self._batcher = Batcher(
            self._engine,
            self._ids,
            batch=config.batch,
            wait=config.batch_wait,
            queue=config.queue,
            threads=config.threads,
            classes=classes,
            deliver=self._keeper.deliver,
            broken=self._keeper.broken,
            observer=self._observer,
        )
        self._started = time.monotonic()
        self._info = self._describe(moe, columns, classes)
        self._ready = False

    def start(self) -> None:
        """Start the threads; `ready` is true when this returns."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._keeper.start()
        self._batcher.start()
        self._started = time.monotonic()
        self._ready = True

    def stop(self, timeout: float = 30.0) -> bool:
        """Refuse new requests, answer what was accepted, save; whether it all was done in time."""
        self._ready = False
        ends = time.monotonic() + timeout
        answered = self._batcher.stop(timeout)
        saved = self._keeper.stop(max(1.0, ends - time.monotonic()))
        if answered and saved:
            self._store.close()
        return answered and saved

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._ready

    @property
    def info(self) -> ServiceInfo:
        """What is served."""
        return self._info

    def submit(self, texts: Sequence[Text]) -> "Future[Answered]":
        """Answer texts with a classifier; quick, never blocks.

        Raises Overloaded or Stopping at once. The future holds Answered, or a ServiceError.
        """
        if self._text:
            raise InputError("this model writes text; it has no labels to classify with")
        job = Job(texts, Future())
        self._batcher.submit(job)
        return job.future

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int | None = None, on_token: OnToken | None = None
    ) -> "Future[Generated]":
        """Write an answer to each prompt with a text-to-text or causal model, greedily; quick, never blocks.

        `on_token` hears each piece of text as it is made, from the batching thread. A cancelled future ends early.
        Raises and fails as `submit` does.
        """
        if not self._text:
            raise InputError("this model classifies; it cannot write text")
        limit = self._config.max_tokens if max_tokens is None else max_tokens
        if not 1 <= limit <= self._config.max_tokens:
            raise InputError(f"max_tokens must be 1..{self._config.max_tokens} (got {limit})")
        job = Job(prompts, Future(), limit=limit, on_token=on_token)
        self._batcher.submit(job)
        return job.future

    def feedback(self, items: Sequence[Feedback]) -> Receipt:
        """Take in rewards; they are on disk when this returns. Blocks for a few milliseconds.

        Raises InputError, with nothing taken in, for a reward outside [0, 1], an unknown task or label.
        """
        tasks = {name: number for number, name in enumerate(self._info.tasks)}
        for item in items:
            self._check(item, tasks)
        raw = [self._known(item.request_id) for item in items]
        labelled = [key for key, item in zip(raw, items, strict=True) if key is not None and item.label is not None]
        logits = self._store.logits_of(labelled)
        outcomes: list[Outcome] = ["unknown"] * len(items)
        rows, places = [], []
        for place, (key, item) in enumerate(zip(raw, items, strict=True)):
            if key is None or (item.label is not None and key not in logits):
                continue
            task = None if item.task is None else tasks[item.task]
            if item.label is None:
                rows.append(FeedbackRow(key, "feedback", task, float(item.reward or 0.0)))
            else:
                rows.append(FeedbackRow(key, "labels", task, self._scored(item, logits[key])))
            places.append(place)
        for place, outcome in zip(places, self._store.add_feedback(rows) if rows else [], strict=True):
            outcomes[place] = outcome
        return Receipt(tuple(outcomes))

    def state(self) -> ServiceState:
        """What the service is doing now."""
        keeper, unseen = self._keeper, np.full(len(self._tasks), np.nan)
        now = keeper.current
        if now is None:
            raise Stopping("the server has not started")
        return ServiceState(
            slot=now.slot,
            merge_version=self._engine.version,
            task_mix=now.task_mix,
            blend=now.blend,
            reward=unseen if keeper.last is None else keeper.last.reward,
            counts=np.zeros(len(self._tasks)) if keeper.last is None else keeper.last.counts,
            estimated_regret=keeper.regret,
            requests=keeper.requests,
            answered=keeper.answered,
            queue=self._batcher.depth,
            pinned=keeper.pinned is not None,
            shares=dict(keeper.shares),
            alarms=tuple(keeper.alarms),
            last_merge_seconds=self._engine.merge_seconds,
            last_pause_seconds=self._engine.pause_seconds,
            uptime=time.monotonic() - self._started,
        )

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first, those before slot `before` if it is given."""
        return [self._slot_view(row) for row in self._store.slots(before=before, limit=limit)]

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""
        held = self._engine.held
        at_hand = {self._engine.version} | ({held.version} if held is not None else set())
        views = []
        for row in self._store.versions():
            count = float(row["counts"].sum())
            reward = float(row["sums"].sum()) / count if count else math.nan
            views.append(
                VersionView(
                    row["version"],
                    row["blend"],
                    row["created"],
                    bool(row["good"]),
                    row["version"] in at_hand,
                    row["requests"],
                    reward,
                )
            )
        return views

    def tree(self) -> TreeView | None:
        """The router's search tree, as it was when the slot opened; None for a router without one."""
        return self._keeper.tree

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a merge version by its number, until `unpin`; its merge version.

        Blocks while it merges. Raises InputError for a bad blend or an unknown version.
        """
        if isinstance(target, int):
            found = {row["version"]: row["blend"] for row in self._store.versions()}
            if target not in found:
                known = ", ".join(map(str, sorted(found)))
                raise InputError(f"merge version {target} is not kept; choose one of {known}")
            blend, version = found[target], target
        else:
            blend, version = as_blend(target, experts=self._info.experts), None
        return self._keeper.call(lambda: self._keeper.pin(blend, version))

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self._keeper.call(self._keeper.unpin)

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier merge version (the last good one before the present if None) until the slot ends.

        The router is told that the blend it chose was bad. Blocks while it merges, if it must. Raises InputError.
        """
        return self._keeper.call(lambda: self._keeper.rollback(version))

    def end_slot(self) -> int:
        """End the slot now; blocks until the next is open, and gives its number. Raises ServiceError if it failed."""
        return self._keeper.call(self._keeper.end)

    def _check(self, item: Feedback, tasks: dict[str, int]) -> None:
        if item.task is not None and item.task not in tasks:
            raise InputError(f"unknown task {item.task!r}; this server knows {', '.join(tasks)}")
        if (item.reward is None) == (item.label is None):
            raise InputError("feedback needs either a reward or a label")
        if item.label is None:
            if item.reward is None or not 0.0 <= item.reward <= 1.0:
                raise InputError(f"a reward must lie in [0, 1] (got {item.reward})")
            return
        if self._space is None or not self._config.rewards.labels:
            raise InputError("this server scores no labels; send a reward instead")
        if item.task is None:
            raise InputError("a label needs its task: labels of several tasks may have one name")
        self._space.check_label(item.task, item.label)

    def _known(self, request_id: str) -> bytes | None:
        raw = self._ids.read(request_id)
        return raw if raw is not None and slot_of(raw) >= self._store.oldest else None

    def _scored(self, item: Feedback, logits: Any) -> float:
        assert self._space is not None and item.task is not None and item.label is not None  # noqa: S101, PT018
        return self._space.score(item.task, item.label, logits)

    def _slot_view(self, row: dict[str, Any]) -> SlotView:
        unseen = np.full(len(self._tasks), np.nan)
        record = SlotRecord(
            row["slot"],
            row["version"],
            row["mix"],
            row["blend"],
            unseen if row["reward"] is None else row["reward"],
            np.zeros(len(self._tasks)) if row["counts"] is None else row["counts"],
        )
        open_now = row["ended"] is None
        regret = self._keeper.regret if open_now else row["regret"]
        return SlotView(
            record,
            row["started"],
            row["ended"],
            self._keeper.requests if open_now else row["requests"],
            bool(row["told"]),
            row["unknown"],
            row["estimate"],
            math.nan if regret is None else regret,
            row["note"],
        )

    def _describe(self, moe: Moe, columns: tuple[str, ...], classes: int) -> ServiceInfo:
        config, specs = self._config, moe.checkpoint.specs.values()
        count, size = parameters_and_bytes(self._engine.live.model)
        loss = self._engine.int8_loss
        return ServiceInfo(
            model=Path(moe.path).name,
            family=moe.family.model_type,
            kind="text" if self._text else "classifier",
            experts=moe.num_experts,
            sites=len(moe.sites),
            tasks=tuple(task.name for task in self._tasks),
            columns=columns,
            classes=classes,
            scales={} if self._space is None else self._space.scales,
            loaded_parameters=count,
            loaded_bytes=size,
            spare_bytes=0 if config.low_memory else self._engine.live.buffer.ffn_bytes,
            full_parameters=sum(spec.numel for spec in specs),
            full_bytes=sum(spec.nbytes for spec in specs),
            precision=config.precision,
            int8_agreement=None if loss is None else loss.agreement,
            device=config.device,
            max_tokens=config.max_tokens,
            slot_requests=config.slot_requests,
            slot_seconds=config.slot_seconds,
        )


def _loaded(router: Router, store: Store) -> Router:
    """Resume a router of the same class as the one given."""
    load: Any = type(router).load
    return load(store.folder / store.meta("router"))


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the front thread tokenises; the cores are the model's
