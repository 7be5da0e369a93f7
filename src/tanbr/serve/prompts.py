"""How much a model that writes can read and write, and what becomes of prompts that are longer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tanbr.errors import InputError
from tanbr.moe.text import Columns, TextEncoder
from tanbr.types import Text


@dataclass(frozen=True, eq=False)
class Fitted:
    """Prompts that fit."""

    columns: Columns
    cut: tuple[int, ...]  # (n,) tokens left out of each prompt; empty if of none
    limits: tuple[int, ...]  # (n,) tokens that can be written for each


@dataclass(frozen=True)
class Room:
    """The tokens that there is room for."""

    prompt: int  # most that a prompt may have
    answer: int  # most that are written for one
    both: int | None  # most of the two together: the positions of a causal model; None for an encoder-decoder
    too_long: Literal["refuse", "cut"]  # what becomes of a prompt that is longer

    def check(self, max_tokens: int | None) -> None:
        """Refuse to write more than can be written."""
        if max_tokens is not None and not 1 <= max_tokens <= self.answer:
            raise InputError(f"max_tokens must be 1..{self.answer} (got {max_tokens})")

    def fit(self, prompts: Sequence[Text], max_tokens: int | None, encoder: TextEncoder) -> Fitted:
        """Encode prompts and see what can be written for each: max_tokens, or if None as much as there is room for.

        A prompt that leaves no room is refused (InputError), or cut on the left: its end is nearest to the answer.
        """
        self.check(max_tokens)
        longest = self.prompt if self.both is None else min(self.prompt, self.both - (max_tokens or 1))
        encoded = encoder.encode(prompts, limit=longest, side="left")
        lengths = [len(row) for row in encoded.columns["input_ids"]]
        if any(encoded.cut) and self.too_long == "refuse":
            number = max(range(len(prompts)), key=encoded.cut.__getitem__)
            raise InputError(
                f"prompt {number + 1} of {len(prompts)} has {lengths[number] + encoded.cut[number]} tokens, and this "
                f"model reads at most {longest} if it is to write {max_tokens or 'any'}; shorten the prompt"
            )
        wanted = self.answer if max_tokens is None else max_tokens
        limits = tuple(wanted if self.both is None else min(wanted, self.both - length) for length in lengths)
        return Fitted(encoded.columns, encoded.cut if any(encoded.cut) else (), limits)
