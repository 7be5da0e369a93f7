"""How answers are written: what a client may ask for, and the seed that each answer's words are drawn with."""

import hashlib
from dataclasses import dataclass

COLDEST = 1e-5  # below it, all words but the most probable have no chance in float64: greedy


@dataclass(frozen=True)
class Sampling:
    """How the words of one row are drawn."""

    temperature: float  # above 0
    top_p: float  # above 0
    seed: int  # of 64 bits, from 0


@dataclass(frozen=True)
class WritingOptions:
    """What a client asks for all answers of one request, within the web's limits; greedy by default."""

    temperature: float = 0.0  # what the logits are divided by; 0: the most probable word each time
    top_p: float = 1.0  # words are drawn from the smallest set that has this much of the probability
    seed: int | None = None  # the same seed, prompt and merge version give the same answer; None: another each time
    n: int = 1  # answers to each prompt; greedy ones are all the same
    stop: tuple[str, ...] = ()  # strings before the first of which an answer ends

    def samplings(self, prompts: int, *, chance: int) -> tuple[Sampling | None, ...]:
        """Say how each of n answers to each prompt is drawn, (prompts · n,); None where it is greedy.

        Every answer has its own seed: by the client's seed, whatever the other prompts are, or else by `chance`.
        """
        if self.temperature < COLDEST or self.top_p == 0:
            return (None,) * (prompts * self.n)
        return tuple(
            Sampling(self.temperature, self.top_p, _hashed(*base, answer))
            for prompt in range(prompts)
            for base in [(chance, prompt) if self.seed is None else (self.seed,)]
            for answer in range(self.n)
        )


def _hashed(*numbers: int) -> int:
    """Make one seed of several numbers; different numbers give different seeds, but for accidents."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
