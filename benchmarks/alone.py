"""What a dense model reaches on one task alone, with the same rows, beside a task's own expert.

Every task trains a copy of the dense checkpoint of its own, all of it (embeddings and lowest layers, too), with dropout
and a rate that falls to 0: the usual recipe, one setting for all tasks, chosen beforehand. It trains on the rows that
`tanbr pretrain` trains on and is scored once, at the end, on the same rows of GLUE's dev. Such a model has all of its
weights for one task; an expert has its FFNs, and shares the rest with seven other tasks.

    python benchmarks/alone.py minilm/ --data glue/ --tasks CoLA,RTE --out docs/results/training/alone.json
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import get_linear_schedule_with_warmup

from tanbr.lab.tasks import glue
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.lab.train.config import MINILM
from tanbr.lab.train.objectives import Objective, objective_of
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace

BATCH, RATE, SEED = 32, 1e-4, 0
EPOCHS = {"CoLA": 5, "SST-2": 1, "MRPC": 6, "STS-B": 5, "QQP": 3, "MNLI": 3, "QNLI": 3, "RTE": 8}


def trained(start: Path, objective: Objective, batches: Batches, task: int, *, steps: int) -> Any:
    """Train a copy of the checkpoint `start` on one task."""
    torch.manual_seed(SEED)  # of dropout
    model: Any = load(start).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    for step in track(range(steps), description=objective.space.tasks[task].name):
        batch = batches.of(task, step)
        loss = (objective.row_losses(model, batch) * batch.truth["weight"]).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


def main() -> None:
    """Train the tasks one after the other; what `--out` holds already is not trained again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dense", type=Path, nargs="?", help="dense checkpoint that the experts came from")
    parser.add_argument("--data", type=Path, help="GLUE's folder")
    parser.add_argument("--tasks", default=",".join(EPOCHS), help="which, between commas")
    parser.add_argument("--out", type=Path, help="JSON file with a figure per task")
    parser.add_argument("--quick", action="store_true", help="five steps and forty rows a task")
    options = parser.parse_args()
    if options.dense is None or options.data is None:
        print("needs a dense checkpoint and GLUE's rows: see --help")
        return
    unknown = sorted(set(options.tasks.split(",")) - set(EPOCHS))
    if unknown:
        parser.error(f"--tasks must be of {', '.join(EPOCHS)} (got {unknown[0]!r})")
    rows, _ = glue.divided(options.data)
    dev = glue.load(options.data, split="dev", limit=40 if options.quick else MINILM.final_rows)
    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))["tasks"]
    space, wanted = LabelSpace(glue.TASKS), options.tasks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        start = prepare(options.dense, space, Path(folder) / "start", max_length=MINILM.max_length, seed=SEED)
        config = load(start).config
        encoder = TextEncoder.of(start, vocab_size=config.vocab_size, max_length=MINILM.max_length)
        objective = objective_of(config, space, encoder)
        batches = Batches(rows, objective=objective, sizes=[BATCH] * len(space.tasks), seed=SEED)
        for v, name in ((v, task.name) for v, task in enumerate(space.tasks)):
            if name not in wanted or name in found:
                continue
            steps = 5 if options.quick else EPOCHS[name] * (len(rows[name]) // BATCH)
            model = trained(start, objective, batches, v, steps=steps)
            found[name] = {"steps": steps, "rows": len(rows[name]), "dev": objective.figure(model, dev[name])}
            print(name, found[name], flush=True)
            if options.out:
                _keep(options.out, found)


def _keep(out: Path, found: dict[str, Any]) -> None:
    recipe = {"batch": BATCH, "rate": RATE, "epochs": EPOCHS, "seed": SEED, "dropout": 0.1}
    command = f"python benchmarks/alone.py minilm --data glue --tasks {','.join(found)}"
    out.write_text(
        json.dumps({"command": command, "recipe": recipe, "tasks": found}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
