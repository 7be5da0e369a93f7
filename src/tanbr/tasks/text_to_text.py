"""Tasks as text to text: what T5 reads, what it should write, and what it means by what it wrote.

Without tags a model reads the bare text, as a client sends it; the paper's setting names the task in front, in T5's own
words. An answer is the label's name, or a score in steps of 0.2, as T5 writes it for STS-B.
"""

from tanbr.tasks.rows import WRITTEN, Row, Task
from tanbr.types import Text

BETWEEN = "</s>"  # what T5 reads between the two texts of a pair
STEP = 0.2  # between two scores that can be written
NO_ANSWER = -1.0  # what is none of the task's answers counts as

_NAMES = {  # task → T5's name for it, and for its texts
    "CoLA": ("cola", "sentence"),
    "SST-2": ("sst2", "sentence"),
    "MRPC": ("mrpc", "sentence1", "sentence2"),
    "STS-B": ("stsb", "sentence1", "sentence2"),
    "QQP": ("qqp", "question1", "question2"),
    "MNLI": ("mnli", "premise", "hypothesis"),
    "QNLI": ("qnli", "question", "sentence"),
    "RTE": ("rte", "sentence1", "sentence2"),
}


def question(row: Row, *, tagged: bool = False) -> Text:
    """Give what the model reads: the row's text as it is, or with its task named in front."""
    if not tagged:
        return row.text
    parts = (row.text,) if isinstance(row.text, str) else row.text
    name, *fields = _NAMES.get(row.task, (row.task, "sentence1", "sentence2")[: len(parts) + 1])
    return " ".join([name, *(f"{field}: {part}" for field, part in zip(fields, parts, strict=True))])


def prompt(text: Text) -> str:
    """Give what a client sends to a model that writes: the text, or both of a pair as T5 joins them."""
    return text if isinstance(text, str) else BETWEEN.join(text)


def answer(row: Row, task: Task) -> str:
    """Give what the model should write."""
    return f"{round(row.target / STEP) * STEP:.1f}" if task.graded else task.labels[int(row.target)]


def answers(task: Task) -> list[str]:
    """List everything that is an answer to a task."""
    if not task.graded:
        return list(task.labels)
    low, high = (round(end / STEP) for end in task.scale)
    return [f"{step * STEP:.1f}" for step in range(low, high + 1)]


def understood(text: str, row: Row, task: Task) -> float:
    """Read an answer as a row's target: the label's index or the score; −1 for whatever the task does not allow.

    Where whole texts are wanted, it is how near the answer comes to the row's own, in [0, 1].
    """
    text = text.strip()
    if task.written:
        wanted = task.labels[int(row.target)]
        return sum(WRITTEN[name](text, wanted) for name in task.metrics) / len(task.metrics)
    if not task.graded:
        return float(task.labels.index(text)) if text in task.labels else NO_ANSWER
    try:
        grade = float(text)
    except ValueError:
        return NO_ANSWER
    return grade if task.scale[0] <= grade <= task.scale[1] else NO_ANSWER
