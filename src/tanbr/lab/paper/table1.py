"""Table I: loaded size and time per batch of routed, merging and merged T5-MoEs, float32 and int8.

Weights are random, and times are ratios inside one round: a busy machine slows all alike.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper import claim
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import K, ModelSize, Setup
from tanbr.lab.pictures import bar_chart
from tanbr.merge import open as open_moe
from tanbr.merge.int8 import quantised
from tanbr.moe.checkpoint import SINGLE, TensorSpec
from tanbr.moe.device import finish
from tanbr.moe.families.t5 import T5MoeConfig, T5MoeForConditionalGeneration
from tanbr.moe.layer import BlendRouting, Routing, TaskRouting, TokenRouting, route
from tanbr.moe.writing import new_folder, write_file

PAPER = {  # seconds per batch
    "merged": 0.61, "task-1": 1.16, "task-2": 1.78, "task-3": 2.41, "token-1": 1.81, "token-2": 2.42, "token-3": 3.05,
    "task-merging": 3.01, "token-merging": 193.88,
}  # fmt: skip
LOADED = 0.22  # 220M of 1.0B parameters
ROUTED = ("task-1", "token-1", "task-2", "token-2", "task-3", "token-3")
HEAD = 64  # width of an attention head, or a quarter of a narrow model
ANSWER = 16  # tokens of a timed answer
STEADY = 1.25  # how far `merged` may move within a round that counts
TOKENS = 8  # of which Token-Merging is timed; the rest would be the same

Routed = tuple[str, Callable[[int], Routing | None]]  # which model runs it, and its routing of a batch of n
METHODS: dict[str, Routed] = {
    "merged": ("merged", lambda _: None),
    "merged int8": ("merged int8", lambda _: None),
    **{f"task-{k}": ("moe", lambda n, k=k: TaskRouting(_tasks(n, k))) for k in (1, 2, 3)},  # type: ignore[misc]
    **{f"token-{k}": ("moe", lambda _, k=k: TokenRouting(k)) for k in (1, 2, 3)},  # type: ignore[misc]
    "task-1 int8": ("moe int8", lambda n: TaskRouting(_tasks(n, 1))),
    "token-1 int8": ("moe int8", lambda _: TokenRouting(1)),
    "task-merging": ("moe", lambda n: BlendRouting(_task_blends(n))),
}
SLOW = "token-merging"  # an FFN merged for every token; timed apart, on a few tokens


def _tasks(n: int, k: int) -> Tensor:
    """Give each of n sequences a task, evenly and in mixed order, and k experts to the task."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return torch.stack([(order + i) % K for i in range(k)], dim=1)


def _task_blends(n: int) -> Tensor:
    """Give each of n sequences the blend of its task."""
    blends = torch.rand(K, K, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    return blends[_tasks(n, 1)[:, 0]]


def random_checkpoint(folder: Path, size: dict[str, int]) -> Path:
    """Write a T5-MoE with random weights, one tensor at a time."""
    config = T5MoeConfig(**size, decoder_start_token_id=0)
    config.architectures = ["T5MoeForConditionalGeneration"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        named = T5MoeForConditionalGeneration(config).state_dict()
    tied = {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    tensors = [TensorSpec(name, torch.float32, tuple(value.shape)) for name, value in named.items() if name not in tied]
    generator = torch.Generator().manual_seed(0)

    def chunks() -> Iterator[Tensor]:
        for tensor in tensors:
            yield torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5

    write_file(folder / SINGLE, tensors, chunks())
    return folder


def random_moe(folder: Path, size: ModelSize) -> Path:
    """Write a random T5-MoE with a gate at every site, unless it is there."""
    if folder.exists():
        return folder
    heads = max(1, size.width // HEAD) if size.width >= 4 * HEAD else 4
    shape = {
        "vocab_size": size.words, "d_model": size.width, "d_kv": size.width // heads, "d_ff": size.ffn,
        "num_layers": size.layers, "num_decoder_layers": size.layers, "num_heads": heads, "num_experts": size.experts,
        "router": True,
    }  # fmt: skip
    with new_folder(folder) as work:
        random_checkpoint(work, shape)
    return folder


class Models:
    """The models of one checkpoint, built when first asked for."""

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        self.folder = folder
        self.moe = open_moe(folder, device=device)
        self.device = self.moe.device
        self._built: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Give the model that a method runs on."""
        if name not in self._built:
            self._built[name] = self._build(name).to(self.device).eval()
        return self._built[name]

    def _build(self, name: str) -> Any:
        if name.endswith(" int8"):
            return quantised(self.get(name.removesuffix(" int8")))
        if name == "moe":
            return T5MoeForConditionalGeneration.from_pretrained(self.folder)
        model = self.moe.dense()
        self.moe.checkpoint.release()
        return model

    def work(self, name: str, *, batch: int, length: int, answer: int = ANSWER) -> Callable[[], Any]:
        """Give the call that is timed: a forward pass over drawn tokens (batch, length)."""
        model, generator = self.get(name), torch.Generator().manual_seed(batch)
        ids = torch.randint(3, model.config.vocab_size, (batch, length), generator=generator).to(self.device)
        return lambda: model(input_ids=ids, decoder_input_ids=ids[:, :answer])


@torch.inference_mode()
def cell(models: Models, *, batch: int, length: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Time every method on batches of a size: rounds of all methods, until there are enough or time is up."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, (model, routing) in METHODS.items():
        if name.endswith(" int8") and models.device.type != "cpu":
            continue  # int8 is the CPU's alone
        work = models.work(model, batch=batch, length=length)
        calls[name] = routed(models.get(model), routing(batch), work)
        calls[name]()  # warms up
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    ends = time.monotonic() + seconds
    while len(times["merged"]) < rounds and (time.monotonic() < ends or not times["merged"]):
        once = {name: timed(call, models.device) for name, call in calls.items()}
        again = timed(calls["merged"], models.device)[0] / once["merged"][0]
        # a round counts if it ends as fast as it began: nothing else ran meanwhile
        if 1 / STEADY < again < STEADY or time.monotonic() >= ends:
            for name, pair in once.items():
                times[name].append(pair)
    wall, work = np.moveaxis(np.array(list(times.values())), 2, 0)  # (methods, rounds) each
    ratios = work / work[list(times).index("merged")]
    columns = zip(times, np.median(wall, axis=1), np.median(ratios, axis=1), strict=True)
    return {name: {"seconds": float(taken), "cpu_ratio": float(ratio)} for name, taken, ratio in columns}


@torch.inference_mode()
def token_merging(models: Models, *, length: int, seconds: float) -> dict[str, Any]:
    """Time merging an FFN for every token, on a few tokens, as a ratio to the merged model's time for as many."""
    model, merged = models.get("moe"), models.work("merged", batch=1, length=length)
    few = models.work("moe", batch=1, length=TOKENS, answer=1)
    by_weights = routed(model, TokenRouting(K, mix="weights"), few)
    # the same sums without a merged FFN per token: every expert runs on every token
    by_products = routed(model, TokenRouting(K, mix="products"), models.work("moe", batch=1, length=length))
    found: dict[str, list[float]] = {"weights": [], "products": []}
    ends = time.monotonic() + seconds
    for call in (merged, by_products):
        call()  # warms up
    while len(found["weights"]) < 5 and (time.monotonic() < ends or not found["weights"]):
        whole = timed(merged, models.device)[1]
        found["weights"].append(timed(by_weights, models.device)[1] * length / TOKENS / whole)
        found["products"].append(timed(by_products, models.device)[1] / whole)
    return {"tokens": TOKENS, "length": length, **{f"{n}_ratio": statistics.median(v) for n, v in found.items()}}


def timed(call: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Take the wall time of a call, and that of its work."""
    worked, start = work_time(device), time.perf_counter()
    call()
    worked = work_time(device) - worked
    return time.perf_counter() - start, worked


def work_time(device: torch.device) -> float:
    """Read a clock of work: CPU time, for other work on the machine does not count; elsewhere the wall's, when done."""
    finish(device)
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def routed(model: nn.Module, routing: Routing | None, call: Callable[[], Any]) -> Callable[[], Any]:
    """Give a call that routes the model first."""

    def run() -> None:
        if routing is not None:
            route(model, routing)
        call()

    return run


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each size of batch; Token-Merging has its own."""
    scale = setup.scale
    models = partial(_models, setup.out / "work" / "random-t5", scale.t5, setup.device)
    facts = {"size": vars(scale.t5), "length": scale.length, "cell_seconds": scale.cell_seconds, **setup.timed_on}

    def time_batch(batch: int, _: Tick) -> dict[str, Any]:
        return cell(models(), batch=batch, length=scale.length, rounds=scale.rounds, seconds=scale.cell_seconds)

    def time_tokens(_: Tick) -> dict[str, Any]:
        return token_merging(models(), length=scale.length, seconds=scale.cell_seconds)

    found = [
        Job(f"table1-{batch}", partial(time_batch, batch), {**facts, "batch": batch, "rounds": scale.rounds})
        for batch in scale.batches
    ]
    return [*found, Job(f"table1-{SLOW}", time_tokens, facts)]


@lru_cache(maxsize=1)
def _models(folder: Path, size: ModelSize, device: str) -> Models:
    return Models(random_moe(folder, size), device=device)


def findings(setup: Setup, results: Results) -> Findings:
    """Compare ratios: seconds are of this machine, ratios to the merged model are what the table is about."""
    scale = setup.scale
    batch = max(scale.batches)
    forward = {size: results[f"table1-{size}"] for size in scale.batches}
    t5, slow = forward[batch], results[f"table1-{SLOW}"]
    where = f"T5, batch {batch}, {setup.clock}"
    share = scale.t5.dense / scale.t5.whole
    claims = [Claim(
        "once merged, a fifth of the parameters is loaded", "220M of 1.0B (22%)",
        f"{scale.t5.dense / 1e6:.1f}M of {scale.t5.whole / 1e6:.1f}M ({share:.0%})", claim.about(share, LOADED),
    )]  # fmt: skip
    for name in (*ROUTED, "task-merging"):
        ours, paper = 1 - 1 / t5[name]["cpu_ratio"], 1 - PAPER["merged"] / PAPER[name]
        reason = f"merged once for each of the {scale.t5.experts} tasks in a batch here, however many rows share it"
        rival = "merging for every task of a batch"
        if name in ROUTED:
            kind, count = name.split("-")
            rival = f"{kind.capitalize()}-SMoE with {count} active"
            parts = [f"batch {size}: {1 / of[name]['cpu_ratio'] - 1:+.0%}" for size, of in forward.items()]
            if int8 := t5.get(f"{name} int8"):
                parts.append(f"both in int8: {t5['merged int8']['cpu_ratio'] / int8['cpu_ratio'] - 1:+.0%}")
            reason = f"on {setup.device}, D = {scale.t5.width}: {', '.join(parts)}"
        claims.append(Claim(
            f"merged is faster than {rival}", f"−{paper:.0%} ({PAPER[name]} s → {PAPER['merged']} s)",
            f"{-ours:+.0%} ({where})", claim.reduction(ours, paper), reason,
        ))  # fmt: skip
    claims.append(Claim(
        "merging for every token takes hundreds of times as long", f"{PAPER[SLOW] / PAPER['merged']:.0f} times",
        f"{slow['weights_ratio']:.0f} times (T5, batch 1, {slow['tokens']} tokens timed)",
        claim.checks({"more than 100 times as long as merged": slow["weights_ratio"] > 100}),
        f"the same sums, by running every expert on every token, take {slow['products_ratio']:.1f} times as long",
    ))  # fmt: skip
    ratios = {name: PAPER[name] / PAPER["merged"] for name in PAPER}
    rows = [
        [name, f"{ratios[name]:.2f}" if name in PAPER else "–"]
        + [f"{of[name]['cpu_ratio']:.2f}" if name in of else "–" for of in forward.values()]
        for name in METHODS
    ]
    seconds = [["merged, seconds", "0.61", *(f"{of['merged']['seconds']:.4f}" for of in forward.values())]]
    title = f"{setup.clock} relative to the merged model, medians; the paper's is of wall time on an A100, batch 128"
    table = Table(title, ["method", "paper", *(f"batch {size}" for size in forward)], rows + seconds)
    both = [name for name in PAPER if name in t5]
    groups = {
        "paper (A100, batch 128)": {name: ratios[name] for name in both},
        f"here ({where})": {name: t5[name]["cpu_ratio"] for name in both},
    }
    picture = bar_chart(groups, title="Time per batch / merged", xlabel="times")
    return Findings(claims, [table], {"Time per batch": picture})


PART = Part(
    "table1",
    "Table I: loaded size and time per batch",
    "The weights are random: times do not depend on them. A round runs every method once on the same batch, so that "
    "each ratio to the merged model compares two runs that were close in time. Every batch mixes all tasks.",
    jobs,
    findings,
    seeds="",
)
