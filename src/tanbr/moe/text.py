"""Texts and pairs of texts, as a model takes them in."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from tanbr.errors import CheckpointError
from tanbr.types import Text

disable_progress_bar()  # our own commands show what takes long


class TextEncoder:
    """The tokenizer that belongs to a checkpoint."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length

    @classmethod
    def of(cls, checkpoint: str | Path, *, vocab_size: int, max_length: int = 128) -> "TextEncoder":
        """Load the tokenizer in a checkpoint's folder, and check that it fits a model of `vocab_size` words."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(checkpoint), local_files_only=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{checkpoint} has no tokenizer that transformers can load: {error}") from None
        if len(tokenizer) > vocab_size:
            raise CheckpointError(
                f"the tokenizer in {checkpoint} has {len(tokenizer)} words but the model only {vocab_size}; "
                "put the tokenizer that the model was trained with beside it"
            )
        return cls(tokenizer, max_length=min(max_length, tokenizer.model_max_length))

    def __call__(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        """Encode texts, padded to the longest: input_ids, attention_mask, … each (n, length)."""
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
        )
        return dict(encoded)
