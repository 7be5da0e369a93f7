"""Every backend and precision: texts a second by all cores, over texts of GLUE's lengths, and what a merge takes."""

import json
import platform
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from serving.models import checkpoint, texts
from serving.rounds import in_turn, ratios, spread
from tanbr.merge import open as open_moe
from tanbr.serve.backends.choose import Precision, instructions
from tanbr.serve.config import usable_cores
from tanbr.serve.engine import Engine

MEDIAN, SPREAD = 28, 0.55  # tokens of a text of GLUE, about: lengths are log-normal
WAYS: list[tuple[str, Precision]] = [("torch", "fp32"), ("torch", "bf16"), ("torch", "int8")]
WAYS += [("onnx", "fp32"), ("onnx", "int8")] if find_spec("onnxruntime") else []


def backends(size: str, work: Path, *, rounds: int) -> dict[str, Any]:
    """Texts per second of each way in each round, batches as the server forms them, one thread for each core."""
    moe = open_moe(checkpoint(size, work))
    native = ("fp32", "int8", *instructions("cpu"))
    engines = {f"{p} by {b}": Engine(moe, backend=b, precision=p) for b, p in WAYS if p in native}
    first = next(iter(engines.values()))
    rng = np.random.default_rng(0)
    words = " ".join(texts(8)).split()
    lengths = np.clip(rng.lognormal(np.log(MEDIAN), SPREAD, 64).astype(int), 4, 120)
    some = [" ".join(rng.choice(words, length)) for length in lengths]
    cores = usable_cores()
    asked = {"32 a request": first.alike(some[:32]), "single": [first.alike([text])[0] for text in some[:12]]}
    result: dict[str, Any] = {"size": size, "rounds": rounds, "threads": cores, "cpu": platform.processor()}
    result |= {"instructions": instructions("cpu"), "tokens": float(lengths.mean()), "ways": {}}
    for name, engine in engines.items():
        result["ways"][name] = {"nbytes": engine.live.backend.size.nbytes, "own": engine.live.backend.size.own_bytes}
    for kind, batches in asked.items():
        count = sum(len(batch["input_ids"]) for batch in batches)
        runs = {name: partial(_classified, one.live.backend.classify, batches, cores) for name, one in engines.items()}
        seconds = in_turn(runs, rounds=rounds)
        for name, took in seconds.items():
            rates = spread([cores * count / one for one in took])
            ratio = ratios(seconds["fp32 by torch"], took)
            result["ways"][name][kind] = {"texts_per_s": rates, "of_fp32_by_torch": ratio}
    torch.set_num_threads(1)
    for name, engine in engines.items():
        swap = {name: lambda engine=engine: engine.swap(rng.dirichlet(np.ones(moe.num_experts)))}
        result["ways"][name]["merge_s"] = spread(in_turn(swap, rounds=rounds, warm=0)[name])
    return result


def _classified(classify: Callable[[Any], Any], batches: list[Any], threads: int) -> None:
    def work() -> None:
        torch.set_num_threads(1)
        for batch in batches:
            classify(batch)

    some = [threading.Thread(target=work) for _ in range(threads)]
    for one in some:
        one.start()
    for one in some:
        one.join()


if __name__ == "__main__":  # python benchmarks/serving/backends.py WORK OUT SIZE…
    found = {size: backends(size, Path(sys.argv[1]), rounds=5) for size in sys.argv[3:]}
    found["command"] = {"argv": ["python", "-m", "serving.backends", "WORK", "OUT", *sys.argv[3:]]}
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
