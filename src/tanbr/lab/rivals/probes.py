"""What data says about experts: each is run alone, as a dense model, over labelled rows of its own task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional as F

from tanbr.errors import DataError
from tanbr.merge import Moe
from tanbr.merge.measure import IGNORED, written
from tanbr.moe.text import TextEncoder
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task


@dataclass(frozen=True, eq=False)
class Probe:
    """One batch of an expert's own rows.

    `surprise` turns logits into √w · (−log p) for some labels (labels, n), where w is the label's weight in the
    expectation under the model's own answer: squared gradients of it add up to the diagonal of the Fisher matrix.
    """

    inputs: Mapping[str, Tensor]  # attention_mask (n, length), …; for an encoder-decoder labels too, −100 for padding
    surprise: Callable[[Tensor], Tensor]


Probes: TypeAlias = Sequence[Sequence[Probe]]  # (K,) lists: expert k's own rows


def probes_of(
    moe: Moe, rows: Mapping[str, Sequence[Row]], *, space: LabelSpace, own: Sequence[int], batch: int = 16
) -> list[list[Probe]]:
    """Encode each task's rows for its own expert, which `own` (V,) names; the model has a head, or it writes."""
    if len(own) != len(space.tasks) or not set(own) <= set(range(moe.num_experts)):
        raise DataError(
            f"each of the {len(space.tasks)} tasks needs its own expert's number, below {moe.num_experts} (got "
            f"{list(own)}); a checkpoint says it in tanbr.json as expert_tasks, a list of experts as task"
        )
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    probe = _written(moe, encode) if moe.config.get("is_encoder_decoder") else _by_head(moe, encode, space)
    found: list[list[Probe]] = [[] for _ in range(moe.num_experts)]
    for task, expert in zip(space.tasks, own, strict=True):
        ordered = sorted(rows[task.name], key=lambda row: len("".join(row.text)))  # little padding
        found[expert] += [probe(task, ordered[start : start + batch]) for start in range(0, len(ordered), batch)]
    if moe.source.with_base:  # it belongs to no task, and is shown the first texts of each
        found[-1] = [some[0] for some in found[:-1] if some]
    return found


def _by_head(moe: Moe, encode: TextEncoder, space: LabelSpace) -> Callable[[Task, Sequence[Row]], Probe]:
    """Probe one head over all labels, in expectation over the task's own; a grade is the chance of yes."""
    head = [str(name) for _, name in sorted(moe.config.get("id2label", {}).items(), key=lambda item: int(item[0]))]
    same = sorted(head) == sorted(space.columns)  # perhaps in another order
    order = [head.index(name) for name in space.columns] if same else list(range(len(space.columns)))

    def probe(task: Task, some: Sequence[Row]) -> Probe:
        columns = [space.columns.index(name) for name in task.labels or (task.name,)]

        def surprise(logits: Tensor) -> Tensor:
            logits = logits[:, order]
            if task.graded:
                chances = F.pad(logits[:, columns], (1, 0)).log_softmax(dim=1)
            else:
                chances = logits[:, : space.classes].log_softmax(dim=1)[:, columns]
            return (-chances * (chances.detach() / 2).exp()).T

        return Probe(encode([row.text for row in some], device=moe.device), surprise)

    return probe


def _written(moe: Moe, encode: TextEncoder) -> Callable[[Task, Sequence[Row]], Probe]:
    """Probe an encoder-decoder by the row's own answer: all that could be written would be endless."""

    def probe(task: Task, some: Sequence[Row]) -> Probe:
        read = encode([row.text for row in some], device=moe.device)
        inputs = written(moe, encode, read, [text_to_text.answer(row, task) for row in some])

        def surprise(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits.mT, inputs["labels"], reduction="none", ignore_index=IGNORED).sum(dim=1)[None]

        return Probe(inputs, surprise)

    return probe
