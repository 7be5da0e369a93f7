"""The next word, drawn instead of the most probable one: temperature, the nucleus (top_p), a generator for each row."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tanbr.serve.manner import Manner


@dataclass(frozen=True)
class Sampling:
    """How the words of one row are drawn."""

    temperature: float  # above 0
    top_p: float  # above 0
    seed: int  # of 64 bits


def samplings(manner: Manner, prompts: int, *, chance: int) -> tuple[Sampling | None, ...]:
    """Say how each of n answers to each of so many prompts is drawn, (prompts · n,); None where it is greedy.

    The seed is the client's, or `chance` if it has none. Each of a prompt's answers has a seed of its own, and these do
    not depend on which other prompts there are; without a client's seed each prompt has others.
    """
    if manner.greedy:
        return (None,) * (prompts * manner.n)
    row = Sampling(manner.temperature, manner.top_p, chance)
    return tuple(
        replace(row, seed=_mixed(chance, prompt, answer) if manner.seed is None else _mixed(manner.seed, answer))
        for prompt in range(prompts)
        for answer in range(manner.n)
    )


def _mixed(*numbers: int) -> int:
    """Make one seed of several numbers, such that no two sets of them share one but by accident."""
    said = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little", signed=True)


class Draws:
    """The rows of a batch that draw their words; each has a generator, and uses one number of it a step."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Sampling, np.random.Generator]] = {}

    def add(self, rows: Sequence[int], how: Sequence[Sampling | None]) -> None:
        """Take in rows; None leaves one greedy."""
        for row, sampling in zip(rows, how, strict=True):
            if sampling is not None:
                self._rows[row] = sampling, np.random.default_rng(sampling.seed % 2**64)

    def draw(self, rows: Sequence[int], logits: Tensor, chosen: Tensor, likely: Tensor) -> tuple[Tensor, Tensor]:
        """Draw words for those of the rows that do; of the others, words and their probabilities (rows,) stay.

        Logits are (rows, words). The probability of a word is the model's own, whatever the temperature.
        """
        places = [place for place, row in enumerate(rows) if row in self._rows]
        if not places:
            return chosen, likely
        how, generators = zip(*(self._rows[rows[place]] for place in places), strict=True)
        own = logits[places].double()
        vectors = (
            torch.tensor(values, dtype=torch.float64, device=own.device)
            for values in (
                [one.temperature for one in how],
                [one.top_p for one in how],
                [generator.random() for generator in generators],
            )
        )
        words = drawn(own, *vectors)
        chosen, likely = chosen.clone(), likely.clone()
        chosen[places] = words
        likely[places] = own.softmax(dim=-1).gather(1, words[:, None])[:, 0].to(likely.dtype)
        return chosen, likely


def drawn(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw a word a row (n,) from logits (n, words) by uniform numbers (n,) in [0, 1).

    The inverse of the distribution's sum in the order of the vocabulary: rounding in the logits moves its steps by as
    much and no more, where in the order of probability it would let two words change places.
    """
    chances = (logits / temperature[:, None]).softmax(dim=-1)
    if bool((top_p < 1).any()):
        chances = torch.where(nucleus(chances, top_p), chances, 0.0)
    sums = torch.where(chances > 0, chances.cumsum(dim=-1), -1.0)  # below every target: no word of chance 0 is drawn
    whole = sums.amax(dim=-1)
    target = torch.minimum(uniform * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return (sums > target[:, None]).to(torch.uint8).argmax(dim=-1)  # the first that passes it


def nucleus(chances: Tensor, top_p: Tensor) -> Tensor:
    """Say which words (n, words) are in the smallest set whose probability reaches top_p (n,); of equals the first.

    A top_p of 1 keeps all: those whose probability is lost in the rounding of the sum, too.
    """
    ordered, words = chances.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered  # what the more probable ones have
    kept = (before < top_p[:, None]) | (top_p[:, None] >= 1)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, words, kept)
