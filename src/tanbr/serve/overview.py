"""What a service shows of itself: what is served, what it is doing, its slots and its merge versions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.merge import Moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.journal import OpenSlot
from tanbr.serve.labels import HeadLabels
from tanbr.serve.learner import Learner
from tanbr.serve.records import ModelView, Reason, ServiceInfo, ServiceState, SlotView, VersionView
from tanbr.serve.replica import Replica


def describe(
    moe: Moe,
    replica: Replica,
    *,
    config: ServeConfig,
    tasks: Sequence[str],
    expert_names: Sequence[str],
    space: HeadLabels | None,
    classes: int,
) -> ServiceInfo:
    """Say what is served."""
    backend, specs = replica.engine.live.backend, moe.checkpoint.specs.values()
    return ServiceInfo(
        model=Path(moe.path).name,
        family=moe.family.model_type,
        kind="text" if backend.writes else "classifier",
        experts=moe.num_experts,
        expert_names=tuple(expert_names) or tuple(f"expert {k + 1}" for k in range(moe.num_experts)),
        sites=len(moe.sites),
        tasks=tuple(tasks),
        columns=backend.columns,
        classes=classes,
        scales={} if space is None else space.scales,
        loaded_parameters=backend.size.parameters,
        loaded_bytes=backend.size.nbytes + (replica.engine.models - 1) * backend.size.own_bytes,
        spare_bytes=0 if config.low_memory else backend.size.own_bytes,
        full_parameters=sum(spec.numel for spec in specs),
        full_bytes=sum(spec.nbytes for spec in specs),
        precision="int8" if config.backend == "int8" else "fp32",
        int8_agreement=None if backend.loss is None else backend.loss.agreement,
        device=config.engine or config.device,
        max_tokens=replica.room.answer,
        slot_requests=config.slot_requests,
        slot_seconds=config.slot_seconds,
        models=replica.engine.models,
        backend=config.engine or config.backend,
    )


def state_now(learner: Learner, replica: Replica, *, uptime: float) -> ServiceState:
    """Say what a service is doing: values that belong together."""
    view, answers, V = learner.view, learner.answers, len(learner.forecast)
    return ServiceState(
        slot=view.opened.slot,
        merge_version=view.opened.merge_version,
        task_mix=view.opened.task_mix,
        blend=view.opened.blend,
        reward=np.full(V, np.nan) if view.last is None else view.last.reward,
        counts=np.zeros(V) if view.last is None else view.last.counts,
        estimated_regret=view.regret,
        requests=answers.held[view.opened.slot],
        answered=answers.answered,
        queue=replica.depth,
        phase=view.phase,
        why=view.why,
        pinned=view.pinned,
        shares=dict(view.shares),
        alarms=learner.alarms,
        last_merge_seconds=replica.engine.merge_seconds,
        last_pause_seconds=replica.engine.pause_seconds,
        uptime=uptime,
        models=_models(learner, view.opened),
        exploration=view.account,
    )


def _models(learner: Learner, opened: OpenSlot) -> tuple[ModelView, ...]:
    """Show the models of the open slot, as far as they answer."""
    names, to = learner.monitor.tasks, opened.task_models
    return tuple(
        ModelView(
            version,
            opened.blends[place],
            tuple(name for name, model in zip(names, to, strict=True) if model == place),
            float(opened.task_mix[to == place].sum()),
            learner.answers.held_by(opened.slot, place),
            learner.guard.reward(version),
        )
        for place, version in enumerate(opened.versions)
    )


def slot_view(row: dict[str, Any], learner: Learner) -> SlotView:
    """Show a slot of the store; the blend of a panel is the mean over its requests."""
    V, models = len(learner.forecast), row["models"]
    held = np.array([model["requests"] for model in models])
    regret = learner.view.regret if row["ended"] is None else row["regret"]
    return SlotView(
        row["slot"],
        row["version"],
        row["mix"],
        np.average([model["blend"] for model in models], axis=0, weights=held if held.any() else None),
        np.full(V, np.nan) if row["reward"] is None else row["reward"],
        np.zeros(V) if row["counts"] is None else row["counts"],
        row["started"],
        row["ended"],
        row["requests"] + sum(more for (slot, _), more in learner.answers.uncounted().items() if slot == row["slot"]),
        bool(row["told"]),
        row["unknown"],
        row["estimate"],
        math.nan if regret is None else regret,
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
