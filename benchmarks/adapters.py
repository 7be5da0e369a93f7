"""What a merge of LoRA adapters costs beside copying the base: a BERT of base size, K adapters of rank r.

All write tensors in place, round after round in turn; what counts is the ratio of a round's two times: with one thread
in the processor's seconds, so that a busy machine matters less, with more on the wall's clock.

    swap        what a new blend writes (the layers that adapters change) / a copy of the whole base
    whole       every tensor of the model / a copy of the whole base
    changes     what a new blend writes / a copy of just that
    floor …     the same, if a merge were nothing but the copy and the products at the speed that torch reaches here

Memory is what a process of its own holds beyond mapped files after several merges, and at most during them. Weights are
random: costs do not depend on them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

import tanbr
from merge import anonymous
from serving.rounds import in_turn, report, spread
from tanbr.merge import Moe
from tanbr.merge.skeleton import locate
from tanbr.merge.sources.source import BASE as MEMBER

BASE = {"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
QUICK = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2}
TARGETS = {"query, value": ("query", "value"), "all linear layers": ("query", "key", "value", "dense")}


def write(folder: Path, size: dict[str, int], *, experts: int, rank: int, targets: tuple[str, ...]) -> Moe:
    """Save a base and its adapters with random weights, and open them."""
    torch.manual_seed(0)
    heads = size["hidden_size"] // 64
    model = BertForSequenceClassification(BertConfig(**size, num_attention_heads=heads))
    model.save_pretrained(folder / "base")
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layer." in name and name.rpartition(".")[2] in targets
    ]
    for k in range(experts):
        tensors = {}
        for name, module in layers:
            tensors[f"base_model.model.{name}.lora_A.weight"] = 0.01 * torch.randn(rank, module.in_features)
            tensors[f"base_model.model.{name}.lora_B.weight"] = 0.01 * torch.randn(module.out_features, rank)
        (folder / str(k)).mkdir()
        save_file(tensors, folder / str(k) / "adapter_model.safetensors")
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets)}
        (folder / str(k) / "adapter_config.json").write_text(json.dumps(settings))
    return tanbr.open(folder / "base", experts=[folder / str(k) for k in range(experts)])


def measure(moe: Moe, *, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Time merges beside copies: of the tensors that change, and of the whole model."""
    model = moe.dense()
    factors = moe.source.factors  # type: ignore[attr-defined]
    changing = [piece.target for piece in moe.plan.blended]
    every = list(moe.plan.shapes)
    stored = {name: moe.checkpoint.tensor(f"{MEMBER}:{name}") for name in every}
    blend = np.random.default_rng(0).dirichlet(np.full(moe.num_experts, 5.0))

    def copy(names: list[str]) -> None:
        with torch.no_grad():
            for name in names:
                locate(model, name).copy_(stored[name])

    def merge(changing_only: bool) -> None:
        for _ in moe.tensors(blend, into=lambda name: locate(model, name), changing=changing_only):
            pass

    ranks = {name: sum(one.down.shape[0] for one in adds.values()) for name, adds in factors.items()}
    sides = {
        name: (torch.randn(stored[name].shape[0], r), torch.randn(r, stored[name].shape[1]))
        for name, r in ranks.items()
    }

    def products() -> None:
        for name, (left, right) in sides.items():
            scratch[name].addmm_(left, right)

    scratch = {name: torch.zeros(stored[name].shape) for name in sides}
    work: dict[str, Callable[[], None]] = {
        "products": products,
        "copy of what changes": lambda: copy(changing),
        "merge of what changes": lambda: merge(True),
        "copy of all": lambda: copy(every),
        "merge of all": lambda: merge(False),
    }
    seconds = in_turn(work, rounds=repeats, warm=2, clock=clock)
    rounds = [dict(zip(seconds, times, strict=True)) for times in zip(*seconds.values(), strict=True)]
    ratios: dict[str, Callable[[dict[str, float]], float]] = {
        "swap": lambda t: t["merge of what changes"] / t["copy of all"],
        "floor of a swap": lambda t: (t["copy of what changes"] + t["products"]) / t["copy of all"],
        "whole": lambda t: t["merge of all"] / t["copy of all"],
        "floor of the whole": lambda t: 1 + t["products"] / t["copy of all"],
        "changes": lambda t: t["merge of what changes"] / t["copy of what changes"],
    }
    found = {what: [ratio(one) for one in rounds] for what, ratio in ratios.items()}
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    flops = sum(2 * ranks[name] * stored[name].numel() for name in sides)
    parts = {"all": every, "changing": changing}
    size = {what: sum(stored[name].nbytes for name in names) for what, names in parts.items()}
    return {
        "ratio": {what: spread(of) for what, of in found.items()},
        "seconds": medians,
        "bytes": size,
        "gflop": flops / 1e9,
        "gflop_per_second": flops / 1e9 / medians["products"],
        "copied_gb_per_second": 2 * size["all"] / 1e9 / medians["copy of all"],  # read and written
    }


def memory(folder: Path, *, experts: int) -> dict[str, int]:
    """Merge in a process that does nothing else, and look at what it holds."""
    command = [sys.executable, __file__, "--memory", str(folder), "--experts", str(experts)]
    found: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def held(folder: Path, *, experts: int) -> dict[str, int]:
    """Bytes beyond mapped files (anonymous memory): of a model that blends are merged into again and again."""
    before = anonymous()
    moe = tanbr.open(folder / "base", experts=[folder / str(k) for k in range(experts)])
    model = moe.dense()
    peak = 0
    for seed in range(3):
        blend = np.random.default_rng(seed).dirichlet(np.full(experts, 5.0))
        for _ in moe.tensors(blend, into=lambda name: locate(model, name), changing=True):
            peak = max(peak, anonymous() - before)
        moe.release()
    base = sum(moe.checkpoint.tensor(f"{MEMBER}:{name}").nbytes for name in moe.plan.shapes)
    adapters = sum((folder / str(k) / "adapter_model.safetensors").stat().st_size for k in range(experts))
    return {"base": base, "adapters": adapters, "peak": peak, "after": anonymous() - before}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--memory", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    if arguments.memory:
        torch.set_num_threads(1)
        print(json.dumps(held(arguments.memory, experts=arguments.experts)))
        return
    figures: dict[str, Any] = {}
    for title, targets in TARGETS.items():
        with tempfile.TemporaryDirectory() as scratch:
            size = QUICK if arguments.quick else BASE
            moe = write(Path(scratch), size, experts=arguments.experts, rank=arguments.rank, targets=targets)
            figures[title] = {}
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                clock = time.process_time if threads == 1 else time.perf_counter
                figures[title][f"{threads} threads"] = measure(moe, repeats=arguments.repeats, clock=clock)
            figures[title]["memory"] = memory(Path(scratch), experts=arguments.experts)
    report(figures, arguments.out)


if __name__ == "__main__":
    main()
