"""Table I at its real size: un-merged routing, per-request merging, merged and plain dense models, float32 and int8.

Random weights, mixed-task batches, two threads. A round runs every method once on the same batch, so that a ratio to
`merged` is of neighbours in time; wall and CPU time, medians over rounds and their range. Cells that are done are kept
in `--out` and skipped when the same command is run again; `--minutes` stops between cells. `--quick` uses tiny models.
"""

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import tanbr.merge
from merge import random_checkpoint
from tanbr.merge.int8 import quantised
from tanbr.moe.families.bert import BertMoeConfig, BertMoeForSequenceClassification
from tanbr.moe.families.t5 import T5MoeForConditionalGeneration
from tanbr.moe.layer import BlendRouting, Routing, TaskRouting, TokenRouting, route

THREADS, K = 2, 8
STEADY = 1.25  # how far `merged` may move within a round that counts
LENGTH, ANSWER = 128, 16  # tokens of a request; tokens of T5's answer
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "full": {
        "t5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
        "bert": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    },
    "quick": {
        "t5": {"vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4},
        "bert": {
            "vocab_size": 500,
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
    },
}
# name → (which model runs it, its routing for a batch of n)
METHODS: dict[str, tuple[str, Callable[[int], Routing | None]]] = {
    "merged": ("merged", lambda _: None),
    "merged int8": ("merged int8", lambda _: None),
    "plain dense": ("dense", lambda _: None),
    **{f"task-{k}": ("moe", lambda n, k=k: TaskRouting(_tasks(n, k))) for k in (1, 2, 3)},  # type: ignore[misc]
    **{f"token-{k}": ("moe", lambda _, k=k: TokenRouting(k)) for k in (1, 2, 3)},  # type: ignore[misc]
    "task-1 int8": ("moe int8", lambda n: TaskRouting(_tasks(n, 1))),
    "token-1 int8": ("moe int8", lambda _: TokenRouting(1)),
    "task-merging": ("moe", lambda n: BlendRouting(_task_blends(n))),
    "token-merging": ("moe", lambda _: TokenRouting(K, mix="weights")),
}


def _tasks(n: int, k: int) -> Tensor:
    """Give each of n sequences a task, evenly and in mixed order, and k experts to the task."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return torch.stack([(order + i) % K for i in range(k)], dim=1)


def _task_blends(n: int) -> Tensor:
    """Give each of n sequences the blend of its task."""
    blends = torch.rand(K, K, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    return blends[_tasks(n, 1)[:, 0]]


class Models:
    """The models of one family, built when first asked for."""

    def __init__(self, kind: str, size: str, work: Path) -> None:
        self.kind = kind
        self.folder = work / f"{kind}-{size}"
        if not (self.folder / "model.safetensors").exists():
            write(kind, size, self.folder)
        self._built: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The model that a method runs on."""
        if name not in self._built:
            self._built[name] = self._build(name).eval()
        return self._built[name]

    def _build(self, name: str) -> Any:
        if name.endswith(" int8"):
            return quantised(self.get(name.removesuffix(" int8")))
        if name == "moe":
            cls = T5MoeForConditionalGeneration if self.kind == "t5" else BertMoeForSequenceClassification
            return cls.from_pretrained(self.folder)
        moe = tanbr.merge.open(self.folder)
        if name == "merged":
            model = moe.dense()
            moe.checkpoint.release()
            return model
        torch.manual_seed(1)
        config = moe.plan.config()
        return getattr(transformers, config.architectures[0])(config)  # the stock class with weights of its own

    def forget(self) -> None:
        """Keep none of the models."""
        self._built.clear()


def write(kind: str, size: str, folder: Path) -> None:
    """Write a random MoE with a gate at every site."""
    shape = SIZES[size][kind]
    if kind == "t5":
        random_checkpoint(folder, shape | {"num_experts": K, "router": True})
        return
    torch.manual_seed(0)
    BertMoeForSequenceClassification(BertMoeConfig(**shape, num_experts=K, router=True, num_labels=20)).save_pretrained(
        folder
    )


def work_of(model: Any, kind: str, mode: str, batch: int) -> Callable[[], Any]:
    """The call that is timed: a forward pass, or greedy decoding of a fixed number of tokens."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(3, model.config.vocab_size, (batch, LENGTH), generator=generator)
    if mode == "decode":
        return lambda: model.generate(ids, max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False)
    more = {"decoder_input_ids": ids[:, :ANSWER]} if kind == "t5" else {}
    return lambda: model(input_ids=ids, **more)


@torch.inference_mode()
def cell(models: Models, mode: str, batch: int, *, rounds: int, seconds: float, skip: set[str]) -> dict[str, Any]:
    """Time every method on one kind of batch: rounds of all methods, until there are enough or time is up."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, (model, routing) in METHODS.items():
        if name not in skip:
            live = models.get(model)
            calls[name] = _routed(live, routing(batch), work_of(live, models.kind, mode, batch))
    wall: dict[str, list[float]] = {name: [] for name in calls}
    work: dict[str, list[float]] = {name: [] for name in calls}
    ends = time.monotonic() + seconds
    disturbed = 0
    for name in calls if batch < 32 else ():
        calls[name]()  # warms up
    while len(wall["merged"]) < rounds and (time.monotonic() < ends or not wall["merged"]):
        times = {name: _timed(call) for name, call in calls.items()}
        again = _timed(calls["merged"])[0] / times["merged"][0]
        if not 1 / STEADY < again < STEADY and time.monotonic() < ends:
            disturbed += 1  # something else ran meanwhile: a round counts if it ends as fast as it began
            continue
        for name, (wall_time, work_time) in times.items():
            wall[name].append(wall_time)
            work[name].append(work_time)
    return {
        name: {
            "seconds": statistics.median(wall[name]),
            "fastest": min(wall[name]),
            "cpu_seconds": statistics.median(work[name]),
            "rounds": len(wall[name]),
            "disturbed": disturbed,
            **_ratios(wall[name], wall["merged"], "ratio"),
            **_ratios(work[name], work["merged"], "cpu_ratio"),
            "fastest_ratio": min(wall[name]) / min(wall["merged"]),
        }
        for name in calls
    }


@torch.inference_mode()
def parity(models: Models, *, batch: int, pairs: int) -> dict[str, Any]:
    """CPU time of plain dense over merged, and of merged over itself as a yardstick: neighbours, in both orders."""
    merged, dense = (work_of(models.get(name), models.kind, "forward", batch) for name in ("merged", "dense"))
    ratios: dict[str, list[float]] = {"plain dense": [], "merged again": []}
    for call in (merged, dense, merged):
        call()  # warms up
    for pair in range(pairs):
        for name, rival in (("plain dense", dense), ("merged again", merged)):
            first, second = (merged, rival) if pair % 2 else (rival, merged)
            before, after = _timed(first)[1], _timed(second)[1]
            ratios[name].append(after / before if pair % 2 else before / after)
    return {name: _typical(values) for name, values in ratios.items()}


def _typical(ratios: list[float]) -> dict[str, float]:
    """Median, quartiles and the median's standard error (by the binomial interval of its rank)."""
    ratios = sorted(ratios)
    n = len(ratios)
    reach = 0.5 * math.sqrt(n)  # one standard deviation of the rank
    low, high = ratios[max(0, math.floor(n / 2 - reach))], ratios[min(n - 1, math.ceil(n / 2 + reach) - 1)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "pairs": n,
        "ratio": statistics.median(ratios),
        "error": (high - low) / 2,
        "quartile_low": quartiles[0],
        "quartile_high": quartiles[2],
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    start, start_work = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - start_work


def _ratios(values: list[float], base: list[float], name: str) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(values, base, strict=True))
    return {name: statistics.median(ratios), f"{name}_low": ratios[0], f"{name}_high": ratios[-1]}


def _routed(model: nn.Module, routing: Routing | None, call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        if routing is not None:
            route(model, routing)
        call()

    return run


@torch.inference_mode()
def token_merging(models: Models, *, tokens: int) -> dict[str, Any]:
    """Time merging for every token, on a few of them (the rest would be the same), and a cheaper way to its sums."""
    model, merged = models.get("moe"), work_of(models.get("merged"), models.kind, "forward", 1)
    ids = torch.randint(3, model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    more = {"decoder_input_ids": ids[:, :1]} if models.kind == "t5" else {}
    route(model, TokenRouting(K, mix="weights"))
    taken = _timed(lambda: model(input_ids=ids, **more))[0]
    # the same sums without a merged FFN per token: every expert runs on every token
    products = _routed(model, TokenRouting(K, mix="products"), work_of(model, models.kind, "forward", 1))
    products()  # warms up
    ratios = [_timed(products)[1] / _timed(merged)[1] for _ in range(5)]
    return {
        "tokens": tokens,
        "seconds": taken,
        "seconds_per_token": taken / (tokens + len(more)),
        "products_cpu_ratio": statistics.median(ratios),
        "products_cpu_ratio_range": [min(ratios), max(ratios)],
    }


def memory(kind: str, size: str, work: Path, name: str) -> dict[str, float]:
    """Peak memory of a process that only serves: it loads one model and answers a batch of 8."""
    done = subprocess.run(
        [sys.executable, __file__, "--serve", f"{kind}:{size}:{name}", "--work", str(work)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout.splitlines()[-1]))


@torch.inference_mode()
def _serve(kind: str, size: str, work: Path, name: str) -> dict[str, float]:
    """Load what one method needs, let go of the rest, answer a batch of 8, and look at what was resident meanwhile."""
    models = Models(kind, size, work)
    moe = tanbr.merge.open(models.folder)
    before, mapped = _status("VmRSS"), _status("RssFile")
    model_name, routing = METHODS[name]
    model = models.get(model_name)
    models.forget()
    moe.checkpoint.release()
    gc.collect()
    # what was only read to be put in int8 may still be mapped: page cache, not the model's
    idle = _status("RssFile") - mapped if name.endswith("int8") else 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    _routed(model, routing(8), work_of(model, kind, "forward", 8))()
    return {
        "parameters_loaded": sum(spec.numel for spec in moe.checkpoint.specs.values())
        if model_name.startswith("moe")
        else sum(math.prod(shape) for shape in moe.plan.shapes.values()),
        "peak_resident": _status("VmHWM") - before - idle,
    }


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this measurement needs Linux")


def plan(kind: str, batches: list[int]) -> Iterator[tuple[str, int, set[str]]]:
    """List a family's cells: (mode, batch, methods to leave out)."""
    slow = {"token-merging"}  # measured on a few tokens, apart
    for batch in batches:
        yield "forward", batch, slow
        if kind == "t5":  # merging for every step of every sequence takes minutes, and shows nothing new
            yield "decode", batch, slow | ({"task-merging"} if batch > 1 else set())


def main() -> None:
    """Measure, print tables, write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models, under a minute")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; kept up to date cell by cell")
    parser.add_argument("--minutes", type=float, default=25.0, help="start no new cell after this long")
    parser.add_argument("--only", choices=("t5", "bert"), default=None, help="one family alone")
    parser.add_argument("--batch", type=int, action="append", help="these batch sizes alone; may be given again")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--work", type=Path, default=None, help="folder for the random checkpoints, kept")
    parser.add_argument("--serve", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if arguments.serve:
        kind, size, name = arguments.serve.split(":")
        print(json.dumps(_serve(kind, size, arguments.work, name)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        _measure(arguments, arguments.work or Path(scratch))


def _measure(arguments: argparse.Namespace, work: Path) -> None:
    size = "quick" if arguments.quick else "full"
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    figures: dict[str, Any] = {"cells": {}, "memory": {}, "token_merging": {}}
    if arguments.out and arguments.out.exists():
        figures = json.loads(arguments.out.read_text())
    figures |= {
        "command": " ".join(["python", "benchmarks/latency.py", *sys.argv[1:]]),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": THREADS},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "experts": K,
        "length": LENGTH,
        "answer": ANSWER,
        "size": SIZES[size],
    }
    ends = time.monotonic() + 60 * arguments.minutes
    for kind in (arguments.only,) if arguments.only else ("t5", "bert"):  # one family's models in memory at a time
        models = Models(kind, size, work)
        for mode, batch, skip in plan(kind, arguments.batch or ([1, 8] if arguments.quick else [1, 8, 32])):
            key = f"{kind} {mode} {batch}"
            if key not in figures["cells"] and time.monotonic() < ends:
                few, seconds = (rounds, 150) if batch < 32 else (min(rounds, 3), 240)
                seconds = 2 if arguments.quick else seconds
                figures["cells"][key] = cell(models, mode, batch, rounds=few, seconds=seconds, skip=skip)
                _keep(arguments.out, figures)
                _show_cell(key, figures["cells"][key])
        for batch, pairs in ((1, 8),) if arguments.quick else ((1, 40), (8, 10)):
            key = f"{kind} {batch}"
            if key not in figures.setdefault("parity", {}) and time.monotonic() < ends:
                figures["parity"][key] = parity(models, batch=batch, pairs=pairs)
                _keep(arguments.out, figures)
        if kind not in figures["token_merging"] and time.monotonic() < ends:
            figures["token_merging"][kind] = token_merging(models, tokens=8)
            _keep(arguments.out, figures)
        del models
        alone = (
            ("merged", "task-1")
            if arguments.quick
            else ("merged", "merged int8", "plain dense", "task-1", "task-1 int8")
        )
        for name in alone:
            key = f"{kind} {name}"
            if key not in figures["memory"] and time.monotonic() < ends:
                figures["memory"][key] = memory(kind, size, work, name)
                _keep(arguments.out, figures)
    _show(figures)
    if arguments.out:
        _draw(figures, arguments.out.with_suffix(".png"))


def _keep(out: Path | None, figures: dict[str, Any]) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part")
        part.write_text(json.dumps(figures, indent=2) + "\n")
        part.replace(out)


def _show_cell(key: str, values: dict[str, Any]) -> None:
    print(f"{key}: merged takes {values['merged']['seconds']:.3f} s", flush=True)
    for name, value in values.items():
        print(
            f"    {name:14s} ×{value['ratio']:.2f} ({value['ratio_low']:.2f}–{value['ratio_high']:.2f})"
            f"   fastest ×{value['fastest_ratio']:.2f}   CPU ×{value['cpu_ratio']:.2f}"
            f" ({value['cpu_ratio_low']:.2f}–{value['cpu_ratio_high']:.2f})",
            flush=True,
        )


def _show(figures: dict[str, Any]) -> None:
    for key, values in figures["parity"].items():
        for name, value in values.items():
            print(
                f"{key:8s} {name:12s} ×{value['ratio']:.3f} ± {value['error']:.3f} of merged"
                f" (quartiles {value['quartile_low']:.3f}–{value['quartile_high']:.3f}, {value['pairs']} pairs)"
            )
    for kind, value in figures["token_merging"].items():
        merged = figures["cells"].get(f"{kind} forward 1", {}).get("merged", {}).get("seconds", math.nan)
        print(
            f"{kind} token-merging: {value['seconds_per_token']:.3f} s per token, so about "
            f"×{value['seconds_per_token'] * LENGTH / merged:.0f} for a request of {LENGTH} tokens (extrapolated); "
            f"with all experts' products instead of merged weights ×{value['products_cpu_ratio']:.1f} (CPU)"
        )
    for key, value in figures["memory"].items():
        print(
            f"{key:18s} {value['parameters_loaded'] / 1e6:6.0f}M parameters loaded, "
            f"{value['peak_resident'] / 1e9:.2f} GB resident at the peak of a batch of 8"
        )


def _draw(figures: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    order = sorted(figures["cells"], key=lambda key: (key.split()[:2], int(key.split()[2])))
    cells = {key: figures["cells"][key] for key in order}  # a row per model and mode, batches side by side
    columns = 3
    rows = -(-len(cells) // columns)
    plot, axes = plt.subplots(rows, columns, figsize=(13, 3.4 * rows), layout="constrained", squeeze=False, sharex=True)
    for ax, (key, values) in zip(axes.flat, cells.items(), strict=False):
        names = list(values)
        ratios = [values[name]["cpu_ratio"] for name in names]
        spread = [[values[n]["cpu_ratio"] - values[n]["cpu_ratio_low"] for n in names],
                  [values[n]["cpu_ratio_high"] - values[n]["cpu_ratio"] for n in names]]  # fmt: skip
        colours = ["tab:blue" if "merged" in n else "0.6" if n == "plain dense" else "tab:orange" for n in names]
        ax.barh(names, ratios, xerr=spread, color=colours, ecolor="0.3")
        ax.invert_yaxis()
        ax.axvline(1, color="0.3", linestyle=":")
        kind, mode, batch = key.split()
        ax.set_title(f"{kind.upper()}, {mode}, batch {batch}", fontsize=10)
        ax.set_xlabel("CPU time / merged")
    for ax in axes.flat[len(cells) :]:
        ax.set_axis_off()
    plot.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
