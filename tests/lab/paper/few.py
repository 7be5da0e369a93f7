"""Every part of the paper in its smallest form."""

from dataclasses import replace
from pathlib import Path

from tanbr.lab.paper.setup import ModelSize, Scale, Setup, scale
from tanbr.lab.train.config import Tuning

FEW: Scale = replace(
    scale("tiny"), seeds=(0,), swept_seeds=(0,),
    tuning=Tuning(steps=3, batch=8, train_rows=16, eval_rows=4, warmup=1, log_every=1, save_every=3),
    served_slots=2, least_answers=1, slots=4, after=2, requests=16, t5=ModelSize(32, 64, 1, 8, 50), length=8,
    batches=(1, 4), rounds=1, cell_seconds=0.1, experts=(4, 6), regret_slots=30,
)  # fmt: skip


def setup(out: Path) -> Setup:
    return Setup(FEW, out)
