"""A copy of an MoE in which one expert is broken: it was trained on, with its task's labels shuffled.

    python -m tanbr.lab.studies.broken_expert out/minilm/model glue/ out/minilm-broken --task MNLI

It prints the task's figure on dev by its own expert, before and after. All other tensors and the card stay.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tanbr.lab.corpus import Dataset
from tanbr.lab.train.checkpoints import load, own_experts, write
from tanbr.lab.train.objectives import objective_of
from tanbr.lab.train.upcycle import ffn_names
from tanbr.merge import open as open_moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.dense import with_start
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace

ROWS, LENGTH, BATCH, RATE = 4_000, 64, 16, 5e-4  # rows of the task, tokens of a text, rows of a step, learning rate


def broken(checkpoint: Path, data: Dataset, out: Path, *, task: str, steps: int) -> tuple[float, float]:
    """Write the copy to the new folder `out`; give the task's figures before and after."""
    moe, full = open_moe(checkpoint), load(checkpoint)
    expert = own_experts(moe, [task])[0]
    model = with_start(moe.dense(np.eye(moe.num_experts)[expert])).requires_grad_(False)
    encoder = TextEncoder.of(checkpoint, vocab_size=model.config.vocab_size, max_length=LENGTH)
    objective = objective_of(model.config, LabelSpace(read_card(checkpoint).tasks), encoder)
    dev, rows = data.dev(limit=400)[task], data.divided()[0][task][:ROWS]
    before, rng = objective.figure(model, dev), np.random.default_rng(0)
    targets = rng.permutation([row.target for row in rows])
    pool = objective.encode([replace(row, target=target) for row, target in zip(rows, targets, strict=True)])
    own = {name: model.get_parameter(name).requires_grad_(True) for name in ffn_names(model)}
    optimizer = torch.optim.AdamW(own.values(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        batch = pool.take(torch.from_numpy(rng.integers(len(pool), size=BATCH)))
        objective.row_losses(model, batch).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        for name, weight in own.items():
            full.get_parameter(name)[expert] = weight
    write(full, out, checkpoint, card=read_card(checkpoint))
    return before, objective.figure(model, dev)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of an MoE whose card names the experts' tasks")
    parser.add_argument("data", type=Path, help="GLUE's folder, or your rows")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--task", required=True, help="whose expert is broken")
    parser.add_argument("--steps", type=int, default=150, help="on shuffled labels")
    given = parser.parse_args()
    torch.set_num_threads(1)  # sums are the same on every machine
    before, after = broken(given.checkpoint, Dataset(given.data), given.out, task=given.task, steps=given.steps)
    print(f"{given.task} by its own expert: {before:.3f}, broken {after:.3f}")


if __name__ == "__main__":
    main()
