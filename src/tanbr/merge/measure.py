"""What each expert sees when it runs alone on texts of its own task: the Gram matrices that regression merges by.

An expert alone is the dense model of its one-hot blend, so no un-merged model is ever in memory.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tanbr.errors import CheckpointError, DataError
from tanbr.merge.gram_matrices import shrunk, write_gram_matrices
from tanbr.merge.moe import Moe
from tanbr.moe.text import TextEncoder
from tanbr.types import Text

IGNORED = -100  # label of a token that is padding
BATCH = 16  # texts that are run at a time
CROSS = re.compile(r"(EncDecAttention|encoder_attn)\.[kv]")  # of a decoder, on what the encoder has read
Inputs: TypeAlias = Mapping[str, Tensor]  # attention_mask (n, length), …; labels for an encoder-decoder


def inputs_of(moe: Moe, texts: Sequence[Text], answers: Sequence[str]) -> list[Inputs]:
    """Encode texts in batches of like length; an encoder-decoder has written the `answers` (n,) so far."""
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    order = sorted(range(len(texts)), key=lambda number: len("".join(texts[number])))
    found: list[Inputs] = []
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        inputs: Inputs = encode([texts[i] for i in chosen], device=moe.device)
        if moe.config.get("is_encoder_decoder"):
            inputs = written(moe, encode, inputs, [answers[i] for i in chosen])
        found.append(inputs)
    return found


def written(moe: Moe, encode: TextEncoder, inputs: Inputs, answers: Sequence[str]) -> Inputs:
    """Add what an encoder-decoder has written (n,) to what it reads."""
    pad, first = encode.tokenizer.pad_token_id or 0, moe.config.get("decoder_start_token_id")
    ids = [torch.tensor(one) for one in encode.tokenizer(list(answers))["input_ids"]]
    labels = pad_sequence(ids, batch_first=True, padding_value=IGNORED).to(moe.device)  # (n, L)
    before = F.pad(labels[:, :-1], (1, 0), value=pad if first is None else first)
    read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    return read | {"decoder_input_ids": before.where(before >= 0, pad), "labels": labels}


def experts_alone(moe: Moe, inputs: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Go through the experts: the dense model (one and the same) that holds expert k alone, and its own inputs."""
    if len(inputs) != moe.num_experts or not all(inputs):
        counts = [len(own) for own in inputs]
        raise DataError(f"each of the {moe.num_experts} experts needs rows of its own task (got batches: {counts})")
    one_hot = np.eye(moe.num_experts)
    model = moe.dense(one_hot[0])
    for blend, own in zip(one_hot, inputs, strict=True):
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


def learned(moe: Moe, model: Any, inputs: Inputs) -> dict[str, nn.Linear]:
    """Find the linear layers to measure, in the order in which they run: those, if any, whose experts differ."""
    layers = linears(moe, model)
    differ = {piece.target.removesuffix(".weight") for piece in moe.plan.blended if moe.source.differ(piece)}
    layers = {name: layer for name, layer in layers.items() if name in differ} or layers
    with torch.no_grad(), watched(layers) as passes:
        model(**inputs)
    return {name: layers[name] for name in passes}


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


def real_tokens(name: str, inputs: Inputs) -> Tensor:
    """Tell the tokens that a layer sees from padding: (n, length)."""
    if name.startswith("decoder.") and "labels" in inputs and not CROSS.search(name):
        return inputs["labels"] != IGNORED
    return inputs["attention_mask"] > 0


@torch.no_grad()
def grams(model: Any, layers: Mapping[str, nn.Linear], inputs: Sequence[Inputs]) -> dict[str, Tensor]:
    """Average x xᵀ over all real tokens x that each layer sees: (in, in) float64, by the layers' names."""
    sums: dict[str, Tensor] = {}
    tokens: dict[str, int] = {}
    for batch in inputs:
        with watched(layers) as passes:
            model(**batch)
        for name, (seen, _) in passes.items():
            real = seen if seen.dim() == 2 else seen[real_tokens(name, batch)]  # a pooler sees no padding
            x = real.float()  # (m, in)
            sums[name] = sums.get(name, 0) + (x.T @ x).double()
            tokens[name] = tokens.get(name, 0) + len(x)
    return {name: total / tokens[name] for name, total in sums.items()}


def measure(
    moe: Moe,
    inputs: Sequence[Sequence[Inputs]],
    folder: Path,
    *,
    rows: int,
    report: Callable[[int], None] = lambda _: None,
) -> Path:
    """Write each expert's Gram matrices, on its own inputs (K,) of `rows` texts, into the new `folder`."""
    layers = learned(moe, moe.dense(), inputs[0][0])
    averages = {name: layer.weight.detach() for name, layer in layers.items()}

    def matrices() -> Iterator[tuple[Tensor, Tensor]]:
        for number, (model, own) in enumerate(experts_alone(moe, inputs)):
            here = linears(moe, model)
            found = grams(model, {name: here[name] for name in averages}, own)
            for name in averages:
                left = shrunk(found[name])
                yield left.float(), (left @ here[name].weight.detach().to(left).T).float()  # (G, G Wᵀ)
            report(number + 1)

    return write_gram_matrices(
        folder, averages, matrices(), experts=moe.num_experts, fingerprint=moe.fingerprint, rows=rows
    )
