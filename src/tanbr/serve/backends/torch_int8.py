"""The same model with its linear maps in int8: a byte a weight, and quicker where the CPU multiplies bytes."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
from tanbr.merge.int8 import Int8Linear, Int8Loss, offered
from tanbr.moe.text import Inputs
from tanbr.serve.backends import bert_pass
from tanbr.serve.backends.backend import Size, Wanted
from tanbr.serve.backends.torch_eager import TorchEager, outputs_of, rest, storage_of, tensors_of
from tanbr.serve.decode import decode, decoder_start
from tanbr.types import Blend

WRITTEN = 16  # tokens that a model which writes is compared over, for each probe


class TorchInt8(TorchEager):
    """An int8 model, and the float FFNs that it is packed from: of these there is one set, whatever the twins."""

    name = "int8"

    def __init__(
        self,
        model: Any,
        outputs: Mapping[str, Tensor],
        packed: Sequence[tuple[Int8Linear, nn.Linear]] = (),
        loss: Int8Loss | None = None,
    ) -> None:
        super().__init__(model, outputs)
        self.loss = loss
        self._packed = packed  # int8 maps of the FFNs, and the float ones they are packed from

    @classmethod
    def build(cls, moe: Moe, **wanted: Unpack[Wanted]) -> Self:
        """Put a model in int8: all linear maps that cost if it answers alike then, or else those of the FFNs."""
        if (device := wanted["device"]) != "cpu":
            raise ConfigError(f"int8 runs on the CPU (got device {device!r}); set device to cpu, or backend to torch")
        exact = TorchEager.build(moe, **wanted)
        if exact.embeds:
            raise InputError("int8 is measured by the answers that stay the same, and vectors have none; use torch")
        outputs = outputs_of(exact.model, moe)
        ffns = _ffns(exact.model, outputs)
        packed = {storage_of(tensor) for ffn in ffns.values() for tensor in ffn.parameters()}
        shared = next((name for name, out in outputs.items() if storage_of(out) not in packed), None)
        if shared is not None:  # by the model that answers and the one that is merged into
            raise InputError(f"a blend changes {shared}, which is no linear map; serve this model in fp32")
        batches = [batch for inputs in wanted["probes"]() for batch in _comparable(exact, inputs)]
        linear = {name for name, module in exact.model.named_modules() if isinstance(module, nn.Linear)}
        cheap = bert_pass.of_one_token(exact.model) - ffns.keys() if bert_pass.takes(exact.model) else set()
        choices = (linear - cheap, set(ffns))
        model, loss = offered(exact.model, batches, least_agreement=wanted["least_agreement"], choices=choices)
        return cls(model, outputs, [(model.get_submodule(name), ffn) for name, ffn in ffns.items()], loss)

    @property
    def size(self) -> Size:
        """What the model takes: a byte per weight of an int8 map."""
        others = super().size
        weights = sum(module.weights for module in self.model.modules() if isinstance(module, Int8Linear))
        own = sum(ffn.weight.numel() for _, ffn in self._packed)
        return Size(others.parameters + weights, others.nbytes + weights, own)

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Merge in float, then pack."""
        super().merge(moe, blend, share=share)
        started = time.perf_counter()
        for int8, ffn in self._packed:
            int8.load(ffn)
            started = rest(started, share)

    def twin(self, moe: Moe) -> Self:  # noqa: ARG002
        """Make a second one that shares everything but the FFNs' int8 maps."""
        own = {id(int8): Int8Linear(ffn) for int8, ffn in self._packed}
        memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors_of(self.model)}
        memo |= {id(module): module for module in self.model.modules() if isinstance(module, Int8Linear)}
        model = copy.deepcopy(self.model, memo | own)
        return type(self)(model, self.outputs, [(own[id(int8)], ffn) for int8, ffn in self._packed], self.loss)


def _ffns(model: nn.Module, outputs: Mapping[str, Tensor]) -> dict[str, nn.Linear]:
    """Find the linear maps that a blend changes, by name."""
    blended = {storage_of(out) for out in outputs.values()}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and storage_of(module.weight) in blended
    }


def _comparable(exact: TorchEager, inputs: Inputs) -> list[dict[str, Tensor]]:
    """Make inputs on which logits can be compared: for a model that writes, row by row, after what it writes itself."""
    tensors = {name: torch.from_numpy(table) for name, table in inputs.items()}
    if not exact.writes:
        return [tensors]
    written = decode(exact.model, inputs, limits=[WRITTEN] * len(inputs["input_ids"]), on_step=lambda _: ())
    rows = []
    for row, answer in enumerate(written):
        tokens = torch.tensor([() if answer is None else answer.tokens], dtype=torch.int64)
        real = np.flatnonzero(inputs["attention_mask"][row])
        prompt = {name: table[row : row + 1, real] for name, table in tensors.items()}
        if exact.causal:
            rows.append({"input_ids": torch.cat([prompt["input_ids"], tokens], dim=1)})
        else:
            start = torch.full((1, 1), decoder_start(exact.model))
            rows.append(prompt | {"decoder_input_ids": torch.cat([start, tokens], dim=1)})
    return rows
