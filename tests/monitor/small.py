"""Three small tasks that a few words tell apart, and a monitor that knows them."""

import numpy as np

from tanbr.monitor import Monitor
from tanbr.types import Text

TASKS = ("weather", "question", "pair")
WORDS = {
    "weather": ["sun", "rain", "wind", "cloud", "storm", "snow", "warm", "cold", "fog", "mild"],
    "question": ["who", "why", "when", "where", "which", "what", "how", "whose"],
    "pair": ["contract", "clause", "party", "section", "term", "notice"],
}


def make(task: str, count: int, seed: int) -> list[Text]:
    """Make texts of a task."""
    rng = np.random.default_rng([seed, TASKS.index(task)])

    def phrase() -> str:
        return " ".join(rng.choice(WORDS[task], size=rng.integers(4, 9)))

    if task == "question":
        return [f"{phrase()}?" for _ in range(count)]
    if task == "pair":
        return [(phrase(), phrase()) for _ in range(count)]
    return [phrase() for _ in range(count)]


def history(count: int, seed: int = 0) -> tuple[list[Text], list[str]]:
    """Make texts of every task, and their tasks."""
    texts = [text for task in TASKS for text in make(task, count, seed)]
    return texts, [task for task in TASKS for _ in range(count)]


def traffic(counts: dict[str, int], seed: int) -> list[Text]:
    """Make the requests of a slot, in random order."""
    texts = [text for task, count in counts.items() for text in make(task, count, seed)]
    return [texts[place] for place in np.random.default_rng(seed).permutation(len(texts))]


def taught(count: int = 40) -> Monitor:
    """Give a monitor that has learned so many texts of each task."""
    monitor = Monitor(TASKS)
    monitor.learn(*history(count))
    return monitor
