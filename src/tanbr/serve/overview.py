"""What a service shows of itself: what is served, what it is doing, its slots and its merge versions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.loop.learner import Learner
from tanbr.loop.practice import SHOWN
from tanbr.loop.slot import Reason
from tanbr.merge import Moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.queue import Queue
from tanbr.serve.records import (
    ModelView,
    PracticeView,
    ServiceInfo,
    SlotView,
    TriedView,
    VersionView,
    Why,
    WorthView,
)
from tanbr.types import SlotRecord

HALF = 1.96  # standard errors in half of a 95% interval


@dataclass(frozen=True, eq=False)
class View:
    """What the learner is at: replaced as a whole, so that a reader sees values that belong together."""

    learner: Learner
    kept: PracticeView | None = None  # what practice had found before this start
    last: SlotRecord | None = None  # last slot that was told
    shares: Mapping[str, float] = field(default_factory=dict)  # of the sources in it
    regret: float = math.nan  # of the open slot, as the router believes
    why: Why | None = None


def view_of(learner: Learner, kept: PracticeView | None = None, *, alarm: Callable[[str], None]) -> View:
    """Show the learner, and why the router chose what is served; a router need not explain itself."""
    decision = learner.slot.decision
    if decision is None or not decision.terms:
        return View(learner, kept)
    terms, mix = decision.why, decision.task_mix
    try:
        expected = learner.router.expected
        if len(decision.blends) > 1:  # every task at its best blend
            this, best = "these together", float(np.nanmax(expected, axis=0, initial=-np.inf) @ mix)
        else:
            this, best = "this one", float(np.nanmax(expected @ mix, initial=-np.inf))
    except Exception as error:
        alarm(f"the router does not explain itself: {type(error).__name__}: {error}")
        return View(learner, kept)
    found = practice_view(learner, kept)
    how = f": {terms.mean:.3f} is expected, and it may be up to {terms.bound:.3f}"
    if found is not None and found.tried:
        how = f", as practice decided after {found.exercises} exercises on logged requests"
    sentence = f"of {terms.candidates} blends {this} may earn most for the mix{how}"
    why = Why(sentence, terms.mean, terms.uncertainty, terms.bound)
    return View(learner, kept, regret=max(0.0, best - terms.mean), why=why)


def practice_view(learner: Learner, kept: PracticeView | None) -> PracticeView | None:
    """Show what practice has found; of a task without a row since the start, what was `kept` from before."""
    practice = learner.practice
    router: Any = learner.router
    if practice is None:
        return None
    before = kept or PracticeView(0, (WorthView(0, 0, None),) * practice.tasks, ())
    means, errors, counts = practice.experts_alone()
    logged, tasks = np.bincount(practice.of, minlength=practice.tasks).tolist(), []
    for v, (worth, own) in enumerate(zip(before.tasks, router.own_experts.tolist(), strict=True)):
        if counts[v]:
            worth = WorthView(int(counts[v]), 0, None, tuple(means[v].tolist()), tuple((HALF * errors[v]).tolist()))
        tasks.append(replace(worth, logged=logged[v], expert=own if own >= 0 else None))
    tried = [
        TriedView(one.slot, tuple(one.blend.tolist()), one.why, one.rows, one.gain, HALF * one.error)
        for one in reversed(practice.tried)
    ]
    return PracticeView(before.exercises + practice.done, tuple(tasks), (*tried, *before.tried)[:SHOWN])


def describe(moe: Moe, queue: Queue, *, config: ServeConfig, expert_names: tuple[str, ...]) -> ServiceInfo:
    """Say what is served."""
    backend, unmerged = queue.engine.live.backend, moe.source.unmerged
    return ServiceInfo(
        model=Path(moe.path).name,
        family=moe.family.model_type,
        kind="text" if backend.writes else "encoder" if backend.embeds else "classifier",
        experts=moe.num_experts,
        expert_names=expert_names,
        sites=len(moe.sites),
        tasks=tuple(task.name for task in queue.tasks),
        columns=backend.columns,
        classes=queue.classes,
        scales={} if queue.space is None else queue.space.scales,
        loaded_parameters=backend.size.parameters,
        loaded_bytes=backend.size.nbytes + (queue.engine.models - 1) * backend.size.own_bytes,
        spare_bytes=0 if config.low_memory or config.engine else backend.size.own_bytes,
        full_parameters=sum(spec.numel for spec in unmerged),
        full_bytes=sum(spec.nbytes for spec in unmerged),
        precision=backend.precision,
        agreement=backend.agreement,
        margin=backend.margin,
        device=config.engine or config.device,
        max_tokens=queue.room.answer,
        slot_requests=config.slot_requests,
        slot_seconds=config.slot_seconds,
        models=queue.engine.models,
        backend=config.engine or str(getattr(backend, "name", config.backend)),
        relays=backend.relays,
        experts_by_name=backend.many,
    )


def model_views(learner: Learner, requests: Mapping[tuple[int, int], int], tasks: Sequence[str]) -> list[ModelView]:
    """Show the models that answer; `requests` were answered by each model of a slot."""
    slot, to = learner.slot, learner.slot.panel.task_models
    return [
        ModelView(
            version,
            slot.blends[place],
            tuple(name for name, model in zip(tasks, to, strict=True) if model == place),
            float(slot.task_mix[to == place].sum()),
            requests[slot.number, place],
            learner.guard.reward(version),
        )
        for place, version in enumerate(slot.versions)
    ]


def slot_view(row: dict[str, Any]) -> SlotView:
    """Show a slot of the store; a panel's blend is the mean over its requests, or over its mix before the first."""
    models, V = row["models"], len(row["mix"])
    held = np.array([model["requests"] for model in models])
    best = np.argmax([model["estimates"] for model in models], axis=0)  # (V,) the model of each task
    shares = held if held.any() else np.bincount(best, weights=row["mix"], minlength=len(models))
    return SlotView(
        row["slot"],
        models[0]["version"],
        row["mix"],
        np.average([model["blend"] for model in models], axis=0, weights=shares),
        np.full(V, np.nan) if row["reward"] is None else row["reward"],
        np.zeros(V) if row["counts"] is None else row["counts"],
        row["started"],
        row["ended"],
        int(held.sum()),
        bool(row["told"]),
        row["unknown"],
        row["estimate"],
        math.nan if row["regret"] is None else row["regret"],
        Reason(row["reason"]),
        row["note"],
        row["chance"],
    )


def version_view(row: dict[str, Any], engine: Engine) -> VersionView:
    """Show a merge version of the store."""
    count, version = float(row["counts"].sum()), row["version"]
    return VersionView(
        version,
        row["blend"],
        row["created"],
        bool(row["good"]),
        version in engine.versions,
        row["requests"],
        float(row["sums"].sum()) / count if count else math.nan,
    )
