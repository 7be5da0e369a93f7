"""Texts and pairs of texts, as a model takes them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from tanbr.errors import CheckpointError
from tanbr.types import Text

Columns: TypeAlias = Mapping[str, Sequence[Sequence[int]]]  # input_ids, attention_mask, …: a list per text
Inputs: TypeAlias = dict[str, NDArray[np.int64]]  # the same, padded: (n, length) each

UNSAID = 512  # tokens, where neither the model nor its tokenizer says how many it takes


@dataclass(frozen=True, eq=False)
class Encoded:
    """Texts as tokens."""

    columns: Columns
    cut: tuple[int, ...]  # (n,) tokens left out of each text because it was too long


class TextEncoder:
    """The tokenizer that belongs to a checkpoint."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._pad = {"input_ids": tokenizer.pad_token_id or 0}

    @classmethod
    def of(cls, checkpoint: str | Path, *, vocab_size: int, max_length: int | None = None) -> "TextEncoder":
        """Load a checkpoint's tokenizer for a model of `vocab_size` words.

        Texts are as long as the model's positions and the tokenizer allow, and no longer than `max_length`.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(checkpoint), local_files_only=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{checkpoint} has no tokenizer that transformers can load: {error}") from None
        if len(tokenizer) > vocab_size:
            raise CheckpointError(
                f"the tokenizer in {checkpoint} has {len(tokenizer)} words but the model only {vocab_size}; "
                "put the tokenizer that the model was trained with beside it"
            )
        said = tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None
        known = [limit for limit in (said, positions(Path(checkpoint))) if limit is not None] or [UNSAID]
        return cls(tokenizer, max_length=min(known if max_length is None else [*known, max_length]))

    def __call__(self, texts: Sequence[Text], *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Encode texts, cut on the right and padded to the longest: input_ids, attention_mask, … each (n, length)."""
        padded = self.pad(self.encode(texts).columns)
        return {name: torch.from_numpy(table).to(device) for name, table in padded.items()}

    def encode(
        self, texts: Sequence[Text], *, limit: int | None = None, side: Literal["left", "right"] = "right"
    ) -> Encoded:
        """Turn texts into tokens, cut to `limit` (max_length if None); of a pair, the longer text is cut first."""
        limit = self.max_length if limit is None else limit
        whole = self.tokenizer(list(texts), verbose=False)
        columns: dict[str, list[list[int]]] = {name: list(whole[name]) for name in whole}
        cut = tuple(max(0, len(row) - limit) for row in columns["input_ids"])
        for i in (i for i, count in enumerate(cut) if count):
            self.tokenizer.truncation_side = side
            kept = self.tokenizer([texts[i]], truncation=True, max_length=limit)
            for name, rows in columns.items():
                rows[i] = kept[name][0]
        return Encoded(columns, cut)

    def pad(self, columns: Columns, *, left: bool = False) -> Inputs:
        """Pad rows to the longest of them, on the right or on the left."""
        length = max(len(row) for row in columns["input_ids"])
        padded: Inputs = {}
        for name, rows in columns.items():
            padded[name] = table = np.full((len(rows), length), self._pad.get(name, 0), dtype=np.int64)
            for i, row in enumerate(rows):
                table[i, length - len(row) if left else 0 : length if left else len(row)] = row
        return padded


def positions(checkpoint: Path) -> int | None:
    """Read from a checkpoint's configuration how many positions the model has; None if it has no such limit."""
    try:
        config = AutoConfig.from_pretrained(str(checkpoint), local_files_only=True)
    except Exception:  # building the model reports what is wrong with it
        return None
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None
