"""A dense model to merge into; a second one shares everything with the first but the FFNs."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.int8 import Int8Linear, Int8Loss, offered
from tanbr.merge.skeleton import locate
from tanbr.merge.stream import finite
from tanbr.types import Blend


class Buffer:
    """A model, and the tensors that a merge writes. Only the engine's swap may call `merge`."""

    def __init__(self, model: Any, outputs: dict[str, Tensor], packed: list[tuple[Int8Linear, nn.Linear]]) -> None:
        self.model = model
        self.readers = 0  # batches that are being answered with it
        self._outputs = outputs  # where merged tensors go: the model's FFNs, or in int8 the float ones beside it
        self._packed = packed  # int8 FFN maps of the model, and the float ones they are packed from

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) into the FFNs, resting between tensors so that at most `share` of the time is work."""
        started = time.perf_counter()
        for name, tensor in moe.tensors(blend, into=self._outputs.__getitem__, changing=True):
            finite(name, tensor)
            moe.release()
            started = _rest(started, share)
        for int8, linear in self._packed:
            int8.load(linear)
            started = _rest(started, share)

    def twin(self, moe: Moe) -> "Buffer":
        """Make a second buffer that shares every tensor with this one but the FFNs'."""
        own = {id(int8): Int8Linear(linear) for int8, linear in self._packed}
        memo: dict[int, Any] = dict(own)
        if self._packed:
            kept: Iterator[Any] = (m for m in self.model.modules() if isinstance(m, Int8Linear) and id(m) not in own)
            memo |= {id(module): module for module in kept}
            memo |= {id(tensor): tensor for tensor in _tensors(self.model)}
            model = copy.deepcopy(self.model, memo)
            packed = [(own[id(int8)], linear) for int8, linear in self._packed]
            return Buffer(model, self._outputs, packed)
        blended = {_storage(out) for out in self._outputs.values()}
        memo |= {id(tensor): tensor for tensor in _tensors(self.model) if _storage(tensor) not in blended}
        return float_buffer(copy.deepcopy(self.model, memo), moe)

    @property
    def ffn_bytes(self) -> int:
        """Size of what a twin has to itself."""
        if self._packed:
            return sum(linear.weight.numel() for _, linear in self._packed)
        sizes = {_storage(out): out.untyped_storage().nbytes() for out in self._outputs.values()}
        return sum(sizes.values())


def float_buffer(model: Any, moe: Moe) -> Buffer:
    """Merge into a model's own FFNs."""
    return Buffer(model, {name: locate(model, name) for name in moe.plan.targets(changing=True)}, [])


def int8_buffer(
    model: Any, moe: Moe, batches: Callable[[], list[Mapping[str, Tensor]]], *, least_agreement: float
) -> tuple[Buffer, Int8Loss]:
    """Put a model in int8 if it answers alike on the given batches; of the float model only the FFNs stay."""
    int8_model, loss = offered(model, batches(), least_agreement=least_agreement)
    outputs = {name: locate(model, name) for name in moe.plan.targets(changing=True)}
    blended = {_storage(out) for out in outputs.values()}
    ffns = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and _storage(module.weight) in blended
    }
    matrices = {_storage(out) for out in outputs.values() if out.dim() > 1}
    if {_storage(linear.weight) for linear in ffns.values()} != matrices:
        raise InputError(f"{moe.family.model_type} models keep their FFNs in no linear maps; serve them in fp32")
    packed = [(int8_model.get_submodule(name), linear) for name, linear in ffns.items()]
    return Buffer(int8_model, outputs, packed), loss


def parameters_and_bytes(model: nn.Module) -> tuple[int, int]:
    """Count a model's parameters and their bytes; an int8 map has a byte per weight."""
    tensors = {_storage(tensor): tensor for tensor in _tensors(model)}
    count = sum(tensor.numel() for tensor in tensors.values())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    for module in model.modules():
        if isinstance(module, Int8Linear):
            count += module.weights
            size += module.weights
    return count, size


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _rest(started: float, share: float) -> float:
    """Sleep for as long as the work since `started` asks for; when the next work starts."""
    if share < 1:
        time.sleep((time.perf_counter() - started) * (1 / share - 1))
    return time.perf_counter()
