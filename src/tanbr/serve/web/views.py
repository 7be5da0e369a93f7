"""From the service's records to the plain values of the answers (described in `responses.py`, `state_responses.py`)."""

from typing import Any

import numpy as np
from scipy.special import expit, softmax

from tanbr.router import TreeView
from tanbr.serve.records import Answered, ServiceInfo, ServiceState, SlotView, VersionView
from tanbr.types import TaskMix

DIGITS = 6  # of probabilities and grades


def classified(answered: Answered, info: ServiceInfo, allowed: list[int]) -> dict[str, Any]:
    """Show logits (n, columns) as probabilities of the labels in the columns `allowed`, and grades on their scales."""
    chances = softmax(answered.logits[:, allowed], axis=1)
    best = chances.argmax(axis=1).tolist()
    labels = [info.columns[column] for column in allowed]
    outputs: list[dict[str, Any]] = [
        {
            "request_id": name,
            "label": labels[winner],
            "score": row[winner],
            "scores": dict(zip(labels, row, strict=True)),
            "tokens_cut": cut,
        }
        for name, winner, row, cut in zip(
            answered.request_ids,
            best,
            chances.round(DIGITS).tolist(),
            answered.cut or [0] * len(best),
            strict=True,
        )
    ]
    for column, task in enumerate(info.columns[info.classes :], start=info.classes):
        low, high = info.scales[task]
        grades = low + (high - low) * expit(answered.logits[:, column])
        for output, grade in zip(outputs, grades.round(DIGITS).tolist(), strict=True):
            output.setdefault("grades", {})[task] = grade
    if answered.merge_versions:
        for output, version in zip(outputs, answered.merge_versions, strict=True):
            output["merge_version"] = version
    return {"outputs": outputs, "merge_version": answered.merge_version}


def state(now: ServiceState, info: ServiceInfo) -> dict[str, Any]:
    """Show what the service does now, and what it serves."""
    return vars(now) | {
        "alarms": [vars(alarm) for alarm in now.alarms],
        "why": None if now.why is None else vars(now.why),
        "models": [vars(model) for model in now.models],
        "exploration": None if now.exploration is None else vars(now.exploration),
        "tasks": info.tasks,
        "slot_requests": info.slot_requests,
        "slot_seconds": info.slot_seconds,
        "model": {
            "name": info.model,
            "family": info.family,
            "kind": info.kind,
            "experts": info.experts,
            "expert_names": info.expert_names,
            "sites": info.sites,
            "models": info.models,
            "labels": info.columns[: info.classes],
            "loaded_bytes": info.loaded_bytes,
            "full_bytes": info.full_bytes,
            "precision": info.precision,
            "device": info.device,
        },
    }


def slot(view: SlotView) -> dict[str, Any]:
    """Show a slot."""
    record = view.record
    more = {name: value for name, value in vars(view).items() if name != "record"}
    return vars(record) | {"mean_reward": record.total_reward} | more


def version(view: VersionView) -> dict[str, Any]:
    """Show a merge version."""
    return vars(view)


def tree(view: TreeView | None, task_mix: TaskMix, *, limit: int) -> dict[str, Any]:
    """Show the most visited nodes, with all their ancestors, and what each would earn with the mix ψ (V,)."""
    if view is None:
        return {"nodes": [], "total": 0}
    kept: set[int] = set()
    for node in np.argsort(-view.visits, kind="stable").tolist():
        if len(kept) >= limit:
            break
        while node >= 0 and node not in kept:
            kept.add(node)
            node = int(view.parent[node])
    place = {node: at for at, node in enumerate(sorted(kept))} | {-1: -1}
    value = view.value @ task_mix
    nodes = [
        {
            "parent": place[int(view.parent[node])],
            "depth": view.depth[node],
            "blend": view.blend[node].round(DIGITS),
            "visits": view.visits[node],
            "value": value[node],
            "leaf": bool(view.leaf[node]),
        }
        for node in sorted(kept)
    ]
    return {"nodes": nodes, "total": len(view)}
