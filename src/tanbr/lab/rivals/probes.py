"""What data says about experts: each is run alone, as a dense model, over labelled rows of its own task.

An expert alone is the dense model of its one-hot blend, so the statistics that Fisher merging and RegMean need come
from one dense model, expert after expert, and no un-merged model is ever in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tanbr.errors import CheckpointError, DataError
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

IGNORED = -100  # label of a token that is padding


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
    return found


def _by_head(moe: Moe, encode: TextEncoder, space: LabelSpace) -> Callable[[Task, Sequence[Row]], Probe]:
    """Probe a model with one head over all labels.

    The expectation runs over the task's own labels; for a graded task over yes and no, whose chance the grade is.
    """
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
    """Probe an encoder-decoder, which reads a text and has written its answer so far.

    The surprise is that of the row's own answer: an expectation over all that could be written would be endless.
    """
    pad = encode.tokenizer.pad_token_id or 0
    first = moe.config.get("decoder_start_token_id")

    def probe(task: Task, some: Sequence[Row]) -> Probe:
        ids = encode.tokenizer([text_to_text.answer(row, task) for row in some])["input_ids"]
        labels = pad_sequence([torch.tensor(one) for one in ids], batch_first=True, padding_value=IGNORED)
        labels = labels.to(moe.device)  # (n, L)
        before = F.pad(labels[:, :-1], (1, 0), value=pad if first is None else first)
        encoded = encode([row.text for row in some], device=moe.device)

        def surprise(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits.mT, labels, reduction="none", ignore_index=IGNORED).sum(dim=1)[None]

        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return Probe(inputs | {"decoder_input_ids": before.where(before >= 0, pad), "labels": labels}, surprise)

    return probe


def experts_alone(moe: Moe, probes: Probes) -> Iterator[tuple[Any, Sequence[Probe]]]:
    """Go through the experts: the dense model (one and the same) that holds expert k alone, and the expert's probes."""
    if len(probes) != moe.num_experts or not all(probes):
        raise DataError(
            f"each of the {moe.num_experts} experts needs rows of its own task (got {[len(own) for own in probes]} "
            "batches); give one list of them per expert"
        )
    one_hot = np.eye(moe.num_experts)
    model = moe.dense(one_hot[0])
    for blend, own in zip(one_hot, probes, strict=True):
        moe.merge_into(model, blend)
        yield model, own


def linears(moe: Moe, model: nn.Module) -> dict[str, nn.Linear]:
    """Find the linear layers of a dense model that experts are merged into, by name."""
    whole = [piece for piece in moe.plan.blended if piece.shape == moe.plan.shapes[piece.target]]  # no part of a head
    names = dict.fromkeys(piece.target.rpartition(".")[0] for piece in whole)
    modules = dict(model.named_modules())
    found = {name: modules[name] for name in names if isinstance(modules.get(name), nn.Linear)}
    if not found:
        raise CheckpointError(f"the experts of a {moe.family.model_type} model are merged into no linear layer")
    return found


@contextmanager
def watched(layers: Mapping[str, nn.Linear]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Keep what goes through linear layers: the newest input (n, length, in) and output (n, length, out) of each."""
    passes: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        passes[name] = args[0], output

    hooks = [layer.register_forward_hook(partial(keep, name)) for name, layer in layers.items()]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


def real_tokens(name: str, probe: Probe) -> Tensor:
    """Tell the tokens that a layer sees from padding: (n, length)."""
    if name.startswith("decoder.") and "labels" in probe.inputs:
        return probe.inputs["labels"] != IGNORED
    return probe.inputs["attention_mask"] > 0
