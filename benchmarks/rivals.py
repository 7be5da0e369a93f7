"""What every rival that does not learn online is worth on the embedded model: the reward per task of its answers.

    python benchmarks/rivals.py --quick                                    # under a minute
    python benchmarks/rivals.py --out docs/results/rivals/embedded.json    # three seeds

Merges, searches and gates get rows of the train split that the model was not trained on; answers are scored on the test
split. Gates are trained with the model's norms, experts frozen, as in the paper's fine-tuning. Only the first group
serves a dense model without being told a request's task.
"""

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tanbr.files import write_atomically
from tanbr.lab.rivals.fisher import fisher
from tanbr.lab.rivals.probes import head_probes
from tanbr.lab.rivals.regmean import regmean
from tanbr.lab.rivals.rl import Reinforce
from tanbr.lab.rivals.search import Table, search
from tanbr.lab.rivals.smear import Smear
from tanbr.lab.rivals.switch import Switch
from tanbr.lab.rivals.task_moe import TaggedMoe, TaskExperts
from tanbr.lab.tasks import tiny
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.finetune import norms
from tanbr.lab.train.objectives import Classification
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.moe.families.bert import BertMoeForSequenceClassification
from tanbr.moe.text import TextEncoder
from tanbr.serve.survey import Survey
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, Text, to_jsonable

SPACE = LabelSpace(tiny.TASKS)
NAMES = [task.name for task in tiny.TASKS]
SURVEYED = 500  # the seed of the rows that the embedded model's survey was measured on
K = len(NAMES)
GATED: dict[str, Callable[..., Any]] = {
    "switch": Switch,
    "rl": Reinforce,
    "smear, per token": Smear,
    "smear, per sequence": partial(Smear, per="sequence"),
}
Answer = Callable[[Sequence[Text], Sequence[int]], FloatArray]  # texts and their tasks → logits (n, columns)


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    seeds: int
    tested: int  # rows a task
    probed: int  # rows a task behind fisher's and regmean's statistics
    evaluations: int  # of blends, by the search
    steps: int  # of the gates
    per_task: int = 8  # rows in a step's batch


def rows(count: int, *, seed: int, split: tiny.Split = "train") -> dict[str, list[Row]]:
    """Generate rows of every task."""
    return {name: tiny.generate(name, count, seed=seed, split=split) for name in NAMES}


def reward(answer: Answer, asked: dict[str, list[Row]]) -> FloatArray:
    """Score answers: mean reward per task (V,)."""
    everything = [row for name in NAMES for row in asked[name]]
    logits = answer([row.text for row in everything], [NAMES.index(row.task) for row in everything])
    return SPACE.slot_reward(everything, SPACE.rewards(everything, SPACE.answers(everything, logits)))[0]


def answering(model: Any, encode: TextEncoder, serving: Callable[[Any], Any] = lambda _: nullcontext()) -> Answer:
    """Let a model answer in batches of like length; `serving` routes it for each."""

    @torch.inference_mode()
    def answer(texts: Sequence[Text], _: Sequence[int]) -> FloatArray:
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        logits = np.empty((len(texts), len(SPACE.columns)))
        for start in range(0, len(order), 64):
            chunk = order[start : start + 64]
            inputs = encode([texts[i] for i in chunk])
            with serving(inputs):
                logits[chunk] = model(**inputs).logits.double().numpy()
        return logits

    return answer


def trained_gates(moe: Moe, make: Callable[..., Any], encode: TextEncoder, *, sizes: Sizes, seed: int) -> Answer:
    """Train a rival's gates and the model's norms."""
    model = BertMoeForSequenceClassification.from_pretrained(moe.path).eval().requires_grad_(requires_grad=False)
    rival = make(model, seed=seed)
    tuned = list(norms(model).values())
    for parameter in [*tuned, *rival.trained()]:
        parameter.requires_grad_(requires_grad=True)
    groups = [{"params": tuned, "lr": 1e-3}, {"params": rival.trained(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, sizes.steps)
    objective = Classification(SPACE, encode)
    pool = rows(max(sizes.per_task * sizes.steps // 4, 64), seed=3_000 + seed)
    batches = Batches(pool, objective=objective, sizes=[sizes.per_task] * K, seed=seed)
    for step in range(sizes.steps):
        batch = batches.at(step)
        rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
        loss = rival.loss(batch.inputs, partial(objective.row_losses, model, batch), rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return answering(model, encode, rival.serving)


def measured(moe: Moe, known: Survey, encode: TextEncoder, *, sizes: Sizes, seed: int) -> dict[str, FloatArray]:
    """Measure every rival with one seed: name → reward per task (V,)."""
    asked = rows(sizes.tested, seed=2_000 + seed, split="test")
    own = read_card(moe.path).experts_of(NAMES)
    probes = head_probes(moe, rows(sizes.probed, seed=1_000 + seed), space=SPACE, own=own)
    held = rows(250, seed=SURVEYED)
    model = moe.dense()

    def blended(blend: FloatArray) -> Answer:
        moe.merge_into(model, blend)
        return answering(model, encode)

    found = search(
        lambda blend: reward(blended(blend), held),
        Table(known.blends, known.rewards),
        mixes=np.full(K, 1 / K),
        evaluations=sizes.evaluations,
        rng=np.random.default_rng(seed),
    )
    experts = {m: TaskExperts.most_helpful(known.rewards[:K].T, per_task=m, own=range(K)) for m in (1, 2, 3)}
    rivals: dict[str, Callable[[], Answer]] = {
        "average": lambda: blended(np.full(K, 1 / K)),
        "fisher": lambda: answering(fisher(moe, probes), encode),
        "regmean": lambda: answering(regmean(moe, probes), encode),
        "best fixed, of the survey": lambda: blended(known.best_fixed),
        "best fixed, by search": lambda: blended(found.best_for(np.full(K, 1 / K))),
        **{name: partial(trained_gates, moe, make, encode, sizes=sizes, seed=seed) for name, make in GATED.items()},
        **{f"task-smoe, {m}": lambda m=m: TaggedMoe(moe, experts[m]).logits for m in experts},  # type: ignore[misc]
        **{f"task-merging, {m}": lambda m=m: TaggedMoe(moe, experts[m], merged=True).logits for m in (2, 3)},  # type: ignore[misc]
    }
    results = {}
    for name, make in rivals.items():
        begun = time.perf_counter()
        results[name] = reward(make(), asked)
        print(f"seed {seed}  {name:26s} {results[name].mean():.3f}  ({time.perf_counter() - begun:.0f} s)", flush=True)
    return results


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one seed, few rows, hardly trained gates")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = Sizes(1, 40, 32, 4, 15) if options.quick else Sizes(3, 200, 128, 30, 100)
    moe = open_moe(embedded.path())
    known = Survey.load(moe.path / "survey.json")
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    runs: list[dict[str, FloatArray]] = []
    for seed in range(sizes.seeds):
        runs.append(measured(moe, known, encode, sizes=sizes, seed=seed))
        if options.out:  # after every seed: the whole takes a while
            write(options.out, sizes, runs)
    print(f"\n{'':27s} mean       " + " ".join(f"{name[:6]:>6s}" for name in NAMES))
    for name, figures in summary(runs).items():
        per_task = " ".join(f"{value:6.3f}" for value in figures["reward"].mean(axis=0))
        print(f"{name:26s} {figures['mean']:.3f} ±{figures['deviation']:.3f} {per_task}")


def summary(runs: Sequence[dict[str, FloatArray]]) -> dict[str, Any]:
    """Put the seeds together: rewards (seeds, V), their mean, and the deviation of the mean between seeds."""
    result = {}
    for name in runs[0]:
        rewards = np.array([run[name] for run in runs])
        means = rewards.mean(axis=1)
        deviation = float(means.std(ddof=1)) if len(runs) > 1 else float("nan")
        result[name] = {"reward": rewards, "mean": float(means.mean()), "deviation": deviation}
    return result


def write(out: Path, sizes: Sizes, runs: Sequence[dict[str, FloatArray]]) -> None:
    """Write what was measured so far, with the command that measures it again."""
    about = {
        "command": "python " + shlex.join(sys.argv),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "sizes": vars(sizes),
        "seeds": list(range(len(runs))),
        "tasks": NAMES,
    }
    write_atomically(out, json.dumps(to_jsonable({**about, "rivals": summary(runs)}), indent=1) + "\n")


if __name__ == "__main__":
    main()
