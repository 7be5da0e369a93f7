"""transformers' own dense model, run by torch: as it is, or a BERT classifier without what its answer does not need."""

import copy
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from tanbr.merge import Moe
from tanbr.merge.blend import finite
from tanbr.merge.skeleton import locate
from tanbr.moe.device import device_of
from tanbr.moe.pooling import Pooling
from tanbr.moe.text import Inputs
from tanbr.serve.backends import bert_pass
from tanbr.serve.backends.backend import Backend, Size, Wanted, Writing
from tanbr.serve.decode import Decoded, decode, on_device
from tanbr.types import Blend, FloatArray

BRIEF = 0.01  # seconds


class TorchEager(Backend):
    """A model, and the tensors of it that a merge writes."""

    name: ClassVar[str] = "torch"

    def __init__(self, model: Any, outputs: Mapping[str, Tensor], *, pooling: Pooling | None = None) -> None:
        """Take a model, with how to pool its tokens if it has no head."""
        self.model, self._pooling, self.embeds = model, pooling, pooling is not None
        self.writes = bool(model.can_generate())
        self.causal = self.writes and not model.config.is_encoder_decoder
        names = model.config.id2label
        labels = [names[column] for column in range(len(names))]
        numbers = [str(number) for number in range(model.config.hidden_size)] if self.embeds else []
        self.columns = () if self.writes else tuple(numbers or labels)
        self.outputs = outputs  # where merged tensors go, by name: the FFNs
        self._lean = bert_pass.takes(model)

    @classmethod
    def build(cls, moe: Moe, **wanted: Unpack[Wanted]) -> Self:
        """Merge into a new model's own FFNs."""
        model = moe.dense(wanted["blend"]).to(device_of(wanted["device"])).eval()
        bare = moe.plan.config().architectures[0].endswith("Model")
        return cls(model, outputs_of(model, moe), pooling=Pooling.of(moe.path) if bare else None)

    @property
    def size(self) -> Size:
        """What the model takes."""
        tensors = {storage_of(tensor): tensor for tensor in tensors_of(self.model)}
        own = {storage_of(out): out.untyped_storage().nbytes() for out in self.outputs.values()}
        return Size(
            sum(tensor.numel() for tensor in tensors.values()),
            sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
            sum(own.values()),
        )

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) into the FFNs, resting between tensors so that at most `share` of the time is work."""
        started = time.perf_counter()
        for name, tensor in moe.tensors(blend, into=self.outputs.__getitem__, changing=True):
            finite(name, tensor)
            moe.release()
            started = rest(started, share)

    def twin(self, moe: Moe) -> Self:
        """Make a second one that shares every tensor but the FFNs'."""
        own = {storage_of(out) for out in self.outputs.values()}
        shared = {id(tensor): tensor for tensor in tensors_of(self.model) if storage_of(tensor) not in own}
        model = copy.deepcopy(self.model, dict(shared))
        return type(self)(model, outputs_of(model, moe), pooling=self._pooling)

    @torch.inference_mode()
    def classify(self, inputs: Inputs) -> FloatArray:
        """Answer padded texts: logits, or the numbers of vectors (n, columns)."""
        tensors = on_device(inputs, self.model)
        if self._pooling is not None:
            found = self._pooling(self.model(**tensors).last_hidden_state, tensors["attention_mask"])
        else:
            found = bert_pass.logits(self.model, **tensors) if self._lean else self.model(**tensors).logits
        logits: FloatArray = found.double().cpu().numpy()
        return logits

    def generate(self, inputs: Inputs, **how: Unpack[Writing]) -> Decoded:
        """Answer padded prompts."""
        return decode(self.model, inputs, **how)


def outputs_of(model: nn.Module, moe: Moe) -> dict[str, Tensor]:
    """Find where in a model merged tensors go, by name."""
    return {name: locate(model, name) for name in moe.plan.targets(changing=True)}


def tensors_of(model: nn.Module) -> list[Tensor]:
    """List a model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def storage_of(tensor: Tensor) -> int:
    """Tell where a tensor's values lie."""
    return tensor.untyped_storage().data_ptr()


def rest(started: float, share: float) -> float:
    """Sleep as long as it takes for the time since `started` to be `share` of all; when the next work starts.

    What took less than BRIEF is counted with the next work: many short sleeps would take longer than they should.
    """
    worked = time.perf_counter() - started
    if share < 1 and worked < BRIEF:
        return started
    time.sleep(worked * (1 / share - 1))
    return time.perf_counter()
