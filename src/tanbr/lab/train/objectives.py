"""How labelled rows teach a model, and how its answers are read: from a head over the label space, or as text.

Batches depend on the step number alone. An epoch visits each row once, in batches of like length.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tanbr.errors import CheckpointError, ConfigError
from tanbr.moe.text import TextEncoder
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace, figure
from tanbr.tasks.rows import Row, Task
from tanbr.types import FloatArray

IGNORED = -100  # label of a token that is padding
_ENCODED = 2_000  # rows tokenised at a time
_ANSWERED = 32  # rows answered at a time


@dataclass(frozen=True, eq=False)
class Batch:
    """Encoded rows."""

    inputs: dict[str, Tensor]  # what the model reads, each (n, length)
    truth: dict[str, Tensor]  # what the objective compares with, each (n, …)
    tasks: Tensor  # (n,) index of each row's task

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def lengths(self) -> Tensor:
        """How many tokens of each row are real (n,)."""
        return self.inputs["attention_mask"].sum(dim=1)

    def take(self, index: Tensor) -> "Batch":
        """Pick rows (m,), padded to the longest of them."""
        longest = int(self.lengths[index].max())
        return Batch(
            inputs={name: value[index, :longest] for name, value in self.inputs.items()},
            truth={name: value[index] for name, value in self.truth.items()},
            tasks=self.tasks[index],
        )

    def to(self, device: torch.device) -> "Batch":
        """Put all of it on a device."""
        inputs, truth = ({name: value.to(device) for name, value in of.items()} for of in (self.inputs, self.truth))
        return Batch(inputs, truth, self.tasks.to(device))


def joined(batches: Sequence[Batch]) -> Batch:
    """Put batches one below the other, padded (with 0, which is padding for every input) to the longest."""
    length = max(batch.inputs["input_ids"].shape[1] for batch in batches)

    def rows(name: str) -> Tensor:
        values = [batch.inputs[name] for batch in batches]
        return torch.cat([F.pad(value, (0, length - value.shape[1])) for value in values])

    return Batch(
        inputs={name: rows(name) for name in batches[0].inputs},
        truth={name: torch.cat([batch.truth[name] for batch in batches]) for name in batches[0].truth},
        tasks=torch.cat([batch.tasks for batch in batches]),
    )


class Objective(ABC):
    """The link between rows and one kind of model."""

    def __init__(self, space: LabelSpace, encoder: TextEncoder) -> None:
        self.space, self.encoder = space, encoder
        self._index = {task.name: v for v, task in enumerate(space.tasks)}

    def encode(self, rows: Sequence[Row]) -> Batch:
        """Encode rows of any tasks, padded to the longest."""
        chunks = [rows[start : start + _ENCODED] for start in range(0, len(rows), _ENCODED)]
        tasks = [torch.tensor([self._index[row.task] for row in chunk]) for chunk in chunks]
        return joined(
            [Batch(self._inputs(chunk), self._truth(chunk), of) for chunk, of in zip(chunks, tasks, strict=True)]
        )

    @abstractmethod
    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Give what the model takes in to compute a batch's losses."""

    @abstractmethod
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Give the loss of each row (n,), from the model's logits."""

    @abstractmethod
    def answers(self, model: Any, rows: Sequence[Row], batch: Batch) -> FloatArray:
        """Let the model answer rows (n,): label index (−1: none of the task's) or score."""

    @abstractmethod
    def _inputs(self, rows: Sequence[Row]) -> dict[str, Tensor]: ...

    @abstractmethod
    def _truth(self, rows: Sequence[Row]) -> dict[str, Tensor]: ...

    def row_losses(self, model: Any, batch: Batch) -> Tensor:
        """Run the model, and give the loss of each row (n,)."""
        logits = model(**self.inputs(batch)).logits
        return self.losses(logits.to(torch.promote_types(logits.dtype, torch.float32)), batch)

    def figures(self, model: Any, rows: Mapping[str, Sequence[Row]]) -> dict[str, float]:
        """Score a model's answers to the rows of each task."""
        return {name: self.figure(model, of_task) for name, of_task in rows.items()}

    @torch.no_grad()
    def figure(self, model: Any, rows: Sequence[Row]) -> float:
        """Score the model's answers to rows of one task by the task's metric; texts of like length share a batch."""
        pool = self.encode(rows)
        answers = np.empty(len(rows))
        for chunk in torch.split(pool.lengths.argsort(), _ANSWERED):
            batch = pool.take(chunk).to(model.device)
            answers[chunk.numpy()] = self.answers(model, [rows[i] for i in chunk.tolist()], batch)
        return figure(self.space.task(rows[0].task), np.array([row.target for row in rows]), answers)


class Classification(Objective):
    """One head over the union of all labels: cross-entropy, and binary cross-entropy for a graded task's column."""

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Give the encoded texts."""
        return batch.inputs

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Give the loss of each row (n,), from logits (n, columns)."""
        classes, columns, targets = self.space.classes, batch.truth["columns"], batch.truth["targets"]
        graded = columns >= classes
        scores = logits.gather(1, columns[:, None]).squeeze(1)
        labels = F.cross_entropy(logits[:, :classes], columns.where(~graded, 0), reduction="none")
        return torch.where(graded, F.binary_cross_entropy_with_logits(scores, targets, reduction="none"), labels)

    def answers(self, model: Any, rows: Sequence[Row], batch: Batch) -> FloatArray:
        """Read answers (n,) off the head."""
        return self.space.read(rows, model(**batch.inputs).logits.cpu().double().numpy())

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return self.encoder([row.text for row in rows])

    def _truth(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return {
            "columns": torch.tensor([self.space.column(row) for row in rows]),
            "targets": torch.tensor([self.space.target(row) for row in rows]),
        }


class TextToText(Objective):
    """Answers as text: cross-entropy of the answer's tokens, averaged over them."""

    def __init__(self, space: LabelSpace, encoder: TextEncoder, *, tagged: bool = False) -> None:
        super().__init__(space, encoder)
        self.tagged = tagged  # whether texts name their task
        answers = [answer for task in space.tasks for answer in text_to_text.answers(task)]
        self._length = max(len(ids) for ids in encoder.tokenizer(answers)["input_ids"])

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Give the encoded texts and the answers to be written, without columns that are padding alone."""
        labels = batch.truth["labels"]
        return {**batch.inputs, "labels": labels[:, (labels != IGNORED).any(dim=0)]}

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Give the loss of each row (n,), from logits (n, length, words)."""
        labels = batch.truth["labels"][:, : logits.shape[1]]
        tokens = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        return tokens.sum(dim=1) / (labels != IGNORED).sum(dim=1)

    def answers(self, model: Any, rows: Sequence[Row], batch: Batch) -> FloatArray:
        """Let the model write, and read what it means (n,)."""
        pairs = zip(self.written(model, batch), rows, strict=True)
        return np.array([text_to_text.understood(text, row, self.space.task(row.task)) for text, row in pairs])

    def written(self, model: Any, batch: Batch) -> list[str]:
        """Let the model write an answer to each row, word after word."""
        tokens = model.generate(**batch.inputs, max_new_tokens=self._length, do_sample=False)
        texts: list[str] = self.encoder.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        encoded = self.encoder([text_to_text.question(row, tagged=self.tagged) for row in rows])
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _truth(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        texts = [text_to_text.answer(row, self.space.task(row.task)) for row in rows]
        ids = self.encoder.tokenizer(texts)["input_ids"]
        labels = torch.full((len(rows), self._length), IGNORED)
        for row, answer in zip(labels, ids, strict=True):
            row[: len(answer)] = torch.tensor(answer)
        return {"labels": labels}


def objective_of(config: Any, space: LabelSpace, encoder: TextEncoder, *, tagged: bool = False) -> Objective:
    """Choose by a model's configuration; a head must be the label space's."""
    if config.is_encoder_decoder:
        return TextToText(space, encoder, tagged=tagged)
    if tagged:
        raise ConfigError("--tagged is for models that write: a model with a head is never told a task")
    columns = tuple(config.id2label[column] for column in range(len(config.id2label)))
    if columns != space.columns:
        raise CheckpointError(
            f"the model's head must have the columns {', '.join(space.columns)} (got {', '.join(columns)}); "
            "train it on these tasks with `tanbr pretrain`"
        )
    return Classification(space, encoder)


_STRETCH = 32  # batches' worth of shuffled rows that are sorted by length


class Batches:
    """Draws batches of each task; what is drawn is put on `device`."""

    def __init__(
        self,
        rows: Mapping[str, Sequence[Row]],
        *,
        objective: Objective,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self._seed, self.device = seed, torch.device(device)
        self._pools = [
            _weighed(objective.encode(rows[task.name]), task, rows[task.name]) for task in objective.space.tasks
        ]
        self._laid_out: dict[tuple[int, int], tuple[int, Tensor]] = {}  # task, size → last epoch, (batches, size)

    def of(self, task: int, step: int, *, size: int) -> Batch:
        """Give a task's batch of a step, padded to its own longest row."""
        pool = self._pools[task]
        size = min(size, len(pool))
        epoch, number = divmod(step, len(pool) // size)
        known, batches = self._laid_out.get((task, size), (-1, torch.empty(0)))
        if known != epoch:
            rng = torch.Generator().manual_seed((self._seed * 1_009 + task) * 1_000_003 + epoch)
            batches = _lay_out(pool.lengths, size, rng)
            self._laid_out[task, size] = epoch, batches
        return pool.take(batches[number]).to(self.device)

    def at(self, step: int, *, size: int) -> Batch:
        """Give the batches of all tasks as one."""
        return joined([self.of(task, step, size=size) for task in range(len(self._pools))])

    def mixed(self, step: int, *, mix: FloatArray, size: int) -> Batch:
        """Draw `size` rows of the tasks by a mix (V,), with replacement."""
        rng = np.random.default_rng((self._seed, step))
        counts = rng.multinomial(size, mix)
        draws = [rng.integers(len(pool), size=n) for pool, n in zip(self._pools, counts, strict=True)]
        return joined(
            [pool.take(torch.from_numpy(rows)) for pool, rows in zip(self._pools, draws, strict=True) if len(rows)]
        ).to(self.device)


def _weighed(pool: Batch, task: Task, rows: Sequence[Row]) -> Batch:
    """Add the rows' weights, 1 on average: labels weigh alike where the metric is Matthews' (CoLA: 70% good)."""
    weights = torch.ones(len(rows))
    if "matthews" in task.metrics:
        _, label, counts = np.unique([row.target for row in rows], return_inverse=True, return_counts=True)
        weights = torch.from_numpy((len(rows) / (len(counts) * counts))[label]).float()
    return replace(pool, truth={**pool.truth, "weight": weights})


def _lay_out(lengths: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """Order rows of `lengths` (n,) as the batches of an epoch, (n // size, size)."""
    whole = len(lengths) // size * size
    stretches = torch.split(torch.randperm(len(lengths), generator=rng)[:whole], size * _STRETCH)
    batches = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in stretches]).view(-1, size)
    return batches[torch.randperm(len(batches), generator=rng)]
