"""The checkpoints that training starts from and ends in: a dense model with a fitting head, and an MoE."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, PreTrainedModel

from tanbr.errors import CheckpointError
from tanbr.lab.train.upcycle import upcycle
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.text import TextEncoder
from tanbr.moe.writing import copy_companions, new_folder
from tanbr.tasks.card import Card, write_card
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
    digests = [file.digest() for file in Checkpoint(folder).files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


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
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
    return out


def upcycled(dense: Path, *, experts: int) -> PreTrainedModel:
    """Load a dense checkpoint as an MoE of equal experts."""
    with tempfile.TemporaryDirectory() as folder:
        return load(upcycle(dense, Path(folder) / "moe", experts=experts))


def write(model: PreTrainedModel, dense: Path, out: Path, *, card: Card | None = None) -> Path:
    """Write a model, with the tokenizer of the dense checkpoint that it came from, to the new folder `out`."""
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        copy_companions(dense, folder)
        if card is not None:
            write_card(folder, card)
    return out
