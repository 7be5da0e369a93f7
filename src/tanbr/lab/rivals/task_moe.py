"""Task-level routing with tags: every task has its own experts, run side by side (Task-SMoE) or merged into one.

Task-SMoE: Kudugunta et al.: Beyond Distillation: Task-level Mixture-of-Experts for Efficient Inference. Findings of
EMNLP 2021. Task-Merging: He et al.: Merging Experts into One: Improving Computational Efficiency of Mixture of Experts.
EMNLP 2023. Their routers are learned while the model is trained; here the experts exist already, so that a task's are
chosen by what they are worth to it on held-out rows. With one expert per task, this is the full MoE with true tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tanbr.errors import CheckpointError, InputError
from tanbr.merge import Moe
from tanbr.moe.families import CLASSES
from tanbr.moe.layer import BlendRouting, Routing, TaskRouting, routed
from tanbr.moe.text import TextEncoder
from tanbr.types import FloatArray, Text


@dataclass(frozen=True, eq=False)
class TaskExperts:
    """The experts that every task is served with, each with an equal share."""

    chosen: NDArray[np.int64]  # (V, m), a task's own first
    experts: int  # K

    @classmethod
    def most_helpful(cls, worth: ArrayLike, *, per_task: int, own: Sequence[int] | None = None) -> Self:
        """Choose a task's own expert and those of the others that are worth the most to it.

        `worth` (V, K) is the reward of each expert alone on held-out rows of each task (the first K rows of a survey,
        turned over); `own` (V,) names the experts that were trained on the tasks, the worthiest if None.
        """
        table = np.array(worth, dtype=np.float64)
        if table.ndim != 2 or not np.isfinite(table).all() or not 1 <= per_task <= table.shape[1]:
            raise InputError(f"worth must be a finite table (V, K), and per_task 1..K (got {table.shape}, {per_task})")
        first = table.argmax(axis=1) if own is None else np.asarray(own)
        if first.shape != (len(table),) or not np.isin(first, np.arange(table.shape[1])).all():
            raise InputError(
                f"own must name one of {table.shape[1]} experts for each of {len(table)} tasks (got {own})"
            )
        table[np.arange(len(table)), first] = np.inf
        return cls(np.argsort(-table, axis=1, kind="stable")[:, :per_task], table.shape[1])

    @property
    def blends(self) -> FloatArray:
        """Each task's blend (V, K), for Task-Merging."""
        return np.eye(self.experts)[self.chosen].mean(axis=1)

    def side_by_side(self, tasks: Tensor) -> Routing:
        """Route rows of tasks (n,) for Task-SMoE: the outputs of a task's experts are averaged."""
        return TaskRouting(torch.from_numpy(self.chosen)[tasks])

    def merged(self, tasks: Tensor) -> Routing:
        """Route rows of tasks (n,) for Task-Merging: the weights of a task's experts are averaged."""
        return BlendRouting(torch.from_numpy(self.blends).float()[tasks])


class TaggedMoe:
    """The whole un-merged model in memory, told the task of every request."""

    def __init__(self, moe: Moe, experts: TaskExperts, *, merged: bool = False, batch: int = 32) -> None:
        name = moe.config["architectures"][0]
        if name not in CLASSES:
            raise CheckpointError(f"{name} models route by token alone; tags need one of {', '.join(CLASSES)}")
        self.model = CLASSES[name].from_pretrained(moe.path).to(moe.device).eval()
        self.encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
        self._route = experts.merged if merged else experts.side_by_side
        self._batch = batch

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text], tasks: Sequence[int]) -> FloatArray:
        """Answer texts of the given tasks (n,): (n, columns)."""
        tags = torch.as_tensor(tasks)
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))  # of like length: little padding
        answers = np.empty((len(texts), self.model.config.num_labels))
        for start in range(0, len(order), self._batch):
            chunk = order[start : start + self._batch]
            with routed(self.model, self._route(tags[chunk])):
                inputs = self.encode([texts[i] for i in chunk], device=self.model.device)
                answers[chunk] = self.model(**inputs).logits.cpu().double().numpy()
        return answers
