"""What a service shows of itself: what is served, what it is doing, its slots and its merge versions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.loop.slot import Reason
from tanbr.loop.turn import Learner
from tanbr.merge import Moe
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.learner import LearnerThread
from tanbr.serve.queue import Queue
from tanbr.serve.records import ModelView, ServiceInfo, ServiceState, SlotView, VersionView
from tanbr.serve.world import ServedWorld


def describe(
    moe: Moe, queue: Queue, *, config: ServeConfig, tasks: Sequence[str], expert_names: Sequence[str]
) -> ServiceInfo:
    """Say what is served."""
    backend, specs = queue.engine.live.backend, moe.checkpoint.specs.values()
    return ServiceInfo(
        model=Path(moe.path).name,
        family=moe.family.model_type,
        kind="text" if backend.writes else "classifier",
        experts=moe.num_experts,
        expert_names=tuple(expert_names) or tuple(f"expert {k + 1}" for k in range(moe.num_experts)),
        sites=len(moe.sites),
        tasks=tuple(tasks),
        columns=backend.columns,
        classes=queue.classes,
        scales={} if queue.space is None else queue.space.scales,
        loaded_parameters=backend.size.parameters,
        loaded_bytes=backend.size.nbytes + (queue.engine.models - 1) * backend.size.own_bytes,
        spare_bytes=0 if config.low_memory else backend.size.own_bytes,
        full_parameters=sum(spec.numel for spec in specs),
        full_bytes=sum(spec.nbytes for spec in specs),
        precision="int8" if config.backend == "int8" else "fp32",
        int8_agreement=None if backend.loss is None else backend.loss.agreement,
        device=config.engine or config.device,
        max_tokens=queue.room.answer,
        slot_requests=config.slot_requests,
        slot_seconds=config.slot_seconds,
        models=queue.engine.models,
        backend=config.engine or config.backend,
    )


def state_now(thread: LearnerThread, queue: Queue, *, uptime: float) -> ServiceState:
    """Say what a service is doing: values that belong together."""
    view, answers = thread.view, thread.world.answers
    learner, slot = view.learner, view.learner.slot
    V = len(learner.forecast)
    return ServiceState(
        slot=slot.number,
        merge_version=slot.versions[0],
        task_mix=slot.task_mix,
        blend=slot.blend,
        reward=np.full(V, np.nan) if view.last is None else view.last.reward,
        counts=np.zeros(V) if view.last is None else view.last.counts,
        estimated_regret=view.regret,
        requests=answers.held[slot.number],
        answered=answers.answered,
        queue=queue.depth,
        phase=learner.phase,
        why=view.why,
        pinned=learner.pin is not None,
        shares=dict(view.shares),
        alarms=thread.alarms.newest,
        last_merge_seconds=queue.engine.merge_seconds,
        last_pause_seconds=queue.engine.pause_seconds,
        uptime=uptime,
        models=_models(learner, thread.world),
        exploration=view.account,
    )


def _models(learner: Learner, world: ServedWorld) -> tuple[ModelView, ...]:
    """Show the models of the open slot, as far as they answer."""
    slot, to = learner.slot, learner.slot.panel.task_models
    return tuple(
        ModelView(
            version,
            slot.blends[place],
            tuple(name for name, model in zip(world.task_names, to, strict=True) if model == place),
            float(slot.task_mix[to == place].sum()),
            world.answers.held_by(slot.number, place),
            learner.guard.reward(version),
        )
        for place, version in enumerate(slot.versions)
    )


def slot_view(row: dict[str, Any], answers: AnswerLog) -> SlotView:
    """Show a slot of the store; the blend of a panel is the mean over its requests."""
    models, V = row["models"], len(row["mix"])
    held = np.array([model["requests"] for model in models])
    return SlotView(
        row["slot"],
        row["version"],
        row["mix"],
        np.average([model["blend"] for model in models], axis=0, weights=held if held.any() else None),
        np.full(V, np.nan) if row["reward"] is None else row["reward"],
        np.zeros(V) if row["counts"] is None else row["counts"],
        row["started"],
        row["ended"],
        row["requests"] + sum(more for (slot, _), more in answers.uncounted().items() if slot == row["slot"]),
        bool(row["told"]),
        row["unknown"],
        row["estimate"],
        math.nan if row["regret"] is None else row["regret"],
        Reason(row["reason"]),
        row["note"],
    )


def version_view(row: dict[str, Any], engine: Engine) -> VersionView:
    """Show a merge version of the store."""
    count, version = float(row["counts"].sum()), row["version"]
    return VersionView(
        version,
        row["blend"],
        row["created"],
        bool(row["good"]),
        version in [one.version for one in (*engine.lineup.models, *engine.held)],
        row["requests"],
        float(row["sums"].sum()) / count if count else math.nan,
    )
