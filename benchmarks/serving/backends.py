"""The backends beside transformers' own forward pass in float32: speed on one core, and labels on real rows."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from serving.models import checkpoint, texts
from serving.speed import spread
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.merge.int8 import quantised
from tanbr.moe import embedded
from tanbr.serve.backends import BACKENDS, bert_pass
from tanbr.serve.engine import Engine

ROWS = 80  # of each generated task
AGREEMENT = 0.995


def backends(size: str, work: Path, *, rounds: int) -> dict[str, Any]:
    """Texts per second of processor time of each backend, over those of transformers' pass in the same round."""
    torch.set_num_threads(1)
    names = [name for name in BACKENDS if name != "onnx" or find_spec("onnxruntime")]
    moe = open_moe(checkpoint(size, work))
    engines = {name: Engine(moe, backend=name, least_agreement=0.0) for name in names}
    model = moe.dense()
    ffns_alone = quantised(model, only={piece.target.removesuffix(".weight") for piece in moe.plan.blended})
    result: dict[str, Any] = {"size": size, "rounds": rounds, "threads": 1}
    for count in (1, 32):
        encoded = engines["torch"].encode.encode(texts(count)).columns
        inputs = engines["torch"].encode.pad(encoded)
        tensors = {name: torch.from_numpy(table) for name, table in inputs.items()}
        ways: dict[str, Callable[[], Any]] = {"transformers": partial(_whole, model, tensors)}
        for name, engine in engines.items():
            ways[name] = partial(engine.live.backend.classify, inputs)
        ways["int8, FFNs alone"] = partial(_lean, ffns_alone, tensors)
        for run in ways.values():
            run()
        times = [{name: _seconds(run, 32 // count) for name, run in ways.items()} for _ in range(rounds)]
        result[f"{count} texts"] = {
            name: spread([one["transformers"] / one[name] for one in times]) for name in ways if name != "transformers"
        } | {"transformers_ms_a_text": spread([1e3 * one["transformers"] / count for one in times])}
    return result | {"labels": agreement(names)}


def agreement(names: list[str]) -> dict[str, list[float]]:
    """Share of the embedded model's rows whose best label is torch's, over the even blend and two others.

    int8 is what the server makes of it when `int8_agreement` is 0.995.
    """
    moe = open_moe(embedded.path())
    rows = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, ROWS, seed=6, split="test")]
    probes = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, ROWS, seed=7, split="test")]
    engines = {name: Engine(moe, backend=name, probes=probes, least_agreement=AGREEMENT) for name in names}
    engines["int8, all maps"] = Engine(moe, backend="int8", least_agreement=0.0)
    same: dict[str, list[float]] = {name: [] for name in engines if name != "torch"}
    for blend in (np.full(8, 1 / 8), np.eye(8)[2], np.random.default_rng(0).dirichlet(np.full(8, 0.5))):
        labels = {}
        for name, engine in engines.items():
            engine.swap(blend)
            labels[name] = engine.logits(rows)[:, :14].argmax(axis=1)
        for name in same:
            same[name].append(float((labels[name] == labels["torch"]).mean()))
    return same


@torch.inference_mode()
def _whole(model: Any, tensors: dict[str, torch.Tensor]) -> Any:
    return model(**tensors)


@torch.inference_mode()
def _lean(model: Any, tensors: dict[str, torch.Tensor]) -> Any:
    return bert_pass.logits(model, **tensors)


def _seconds(run: Callable[[], Any], times: int) -> float:
    """Median seconds of a pass, by this process's own clock: others may have the processor meanwhile."""
    found = []
    for _ in range(max(1, times // 4)):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return statistics.median(found)
