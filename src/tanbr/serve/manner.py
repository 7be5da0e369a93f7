"""How a client wants answers to be written."""

from dataclasses import dataclass

from tanbr.errors import InputError

MOST_STOPS = 4  # strings that may end an answer, as OpenAI's API has it
HOTTEST = 2.0  # temperature, likewise
COLDEST = 1e-5  # below it, all but the most probable word have no chance in float64: greedy


@dataclass(frozen=True)
class Manner:
    """What is said of all answers of one request; greedy if nothing is."""

    temperature: float = 0.0  # what the logits are divided by; 0: the most probable word each time
    top_p: float = 1.0  # words are drawn from the smallest set that has this much of the probability
    seed: int | None = None  # the same seed, prompt and merge version give the same answer; None: another each time
    n: int = 1  # answers to each prompt; greedy ones are all the same
    stop: tuple[str, ...] = ()  # strings before the first of which an answer ends

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= HOTTEST:
            raise InputError(f"temperature must be 0..{HOTTEST:g} (got {self.temperature})")
        if not 0 <= self.top_p <= 1:
            raise InputError(f"top_p must be 0..1 (got {self.top_p})")
        if self.n < 1:
            raise InputError(f"n must be at least 1 (got {self.n})")
        if len(self.stop) > MOST_STOPS or not all(self.stop):
            raise InputError(f"stop must be at most {MOST_STOPS} strings, none of them empty (got {len(self.stop)})")

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature < COLDEST or self.top_p == 0
