"""The checkpoints that training starts from and ends in: a dense model with a fitting head, an MoE, joined experts."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tanbr.errors import CheckpointError
from tanbr.lab.corpus import Rows
from tanbr.lab.train.objectives import Objective
from tanbr.lab.train.upcycle import upcycle
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.sources import OverBase
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.layer import BY_GATES, route
from tanbr.moe.text import TextEncoder
from tanbr.moe.writing import copy_companions, new_folder
from tanbr.serve.dense import with_start
from tanbr.tasks.card import Card, read_card, write_card
from tanbr.tasks.metrics import LabelSpace

_LOADERS: dict[str, Any] = {
    "bert": AutoModelForSequenceClassification,
    "bert_moe": AutoModelForSequenceClassification,
    "t5": AutoModelForSeq2SeqLM,
    "t5_moe": AutoModelForSeq2SeqLM,
}


def load(folder: Path, **changes: Any) -> PreTrainedModel:
    """Load a BERT or T5, dense or MoE, with `changes` of its settings."""
    kind = Checkpoint(folder).config["model_type"]
    if kind not in _LOADERS:
        raise CheckpointError(f"{folder} must be a BERT or a T5 (its config.json says {kind!r})")
    model: PreTrainedModel = _LOADERS[kind].from_pretrained(folder, local_files_only=True, **changes)
    return model


def digest(folder: Path) -> str:
    """Tell checkpoints apart by their weights: 12 hexadecimal digits."""
    return Checkpoint(folder).fingerprint[:12]


def prepare(dense: Path, space: LabelSpace, out: Path, *, max_length: int, seed: int) -> Path:
    """Write the dense checkpoint that training starts from to `out`, unless it is there: a BERT gets a new head."""
    if out.exists():
        return out
    torch.manual_seed(seed)  # of the head
    columns = dict(enumerate(space.columns))
    head = {"id2label": columns, "label2id": {name: column for column, name in columns.items()}}
    is_bert = Checkpoint(dense).config["model_type"] == "bert"
    model = load(dense, **head | {"ignore_mismatched_sizes": True} if is_bert else {})
    encoder = TextEncoder.of(dense, vocab_size=model.config.vocab_size, max_length=max_length)
    encoder.tokenizer.model_max_length = encoder.max_length
    return write(model, out, encoder.tokenizer)


def upcycled(dense: Path, *, experts: int) -> PreTrainedModel:
    """Load a dense checkpoint as an MoE of equal experts."""
    with tempfile.TemporaryDirectory() as folder:
        return load(upcycle(dense, Path(folder) / "moe", experts=experts))


def write(
    model: PreTrainedModel, out: Path, tokenizer: Path | PreTrainedTokenizerBase, *, card: Card | None = None
) -> Path:
    """Write a model, with a tokenizer (or that of the checkpoint it came from), to the new folder `out`."""
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        if isinstance(tokenizer, Path):
            copy_companions(tokenizer, folder)
        else:
            tokenizer.save_pretrained(folder)
        if card is not None:
            write_card(folder, card)
    return out


def card_of(moe: Moe) -> Card:
    """Make the card of experts over a base; an MoE checkpoint has its own."""
    if not isinstance(moe.source, OverBase):
        return read_card(moe.path)
    folders = [Path(name).resolve().name for name in moe.source.names[: moe.source.trained]]
    tasks = moe.source.expert_tasks or (tuple(folders) if len(set(folders)) == len(folders) else ())
    return read_card(moe.path).of_experts(tasks, moe.source.expert_labels)


Figures: TypeAlias = dict[str, float]  # task name → its metric


def own_experts(moe: Moe, tasks: Sequence[str]) -> tuple[int, ...]:
    """Find the expert that was trained for each task, as the checkpoint's card says; none if it does not."""
    own = card_of(moe).experts_of(tasks)
    if own and max(own) >= moe.num_experts:
        raise CheckpointError(
            f"{moe.path}: tanbr.json names a task for expert {max(own)} of {moe.num_experts}; mend it"
        )
    return own


def as_trained(checkpoint: Path, objective: Objective, rows: Rows, *, device: str = "cpu") -> dict[str, Figures]:
    """Score the uniform merge, with `tags` each task by its own expert, and with `gates` the MoE as they route it."""
    if (settings := Checkpoint(checkpoint).config if checkpoint.is_dir() else {}).get("model_type") in ("bert", "t5"):
        return {"dense": objective.figures(load(checkpoint).to(device), rows)}
    moe = open_moe(checkpoint, device=device)
    model = with_start(moe.dense())
    result = {"average": objective.figures(model, rows)}
    for name, expert in zip(rows, own_experts(moe, list(rows)), strict=False):  # none, or one for each task
        moe.merge_into(model, np.eye(moe.num_experts)[expert])
        result.setdefault("tags", {}).update(objective.figures(model, {name: rows[name]}))
    if settings.get("router"):
        route(full := load(checkpoint).to(device), BY_GATES)
        result["gates"] = objective.figures(full, rows)
    return result
