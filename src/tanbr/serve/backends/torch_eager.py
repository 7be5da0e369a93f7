"""transformers' own dense model, run by torch: as it is, or a BERT classifier without what its answer does not need.

A merge in bf16 is written straight from the experts. A classifier in int8 has the model in float32 beside it, for texts
whose two best labels are closer than int8's error: where labels tie, any rounding changes some.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.blend import finite
from tanbr.merge.int8 import Int8Linear, quantised
from tanbr.merge.skeleton import locate
from tanbr.moe.device import device_of
from tanbr.moe.pooling import Pooling
from tanbr.moe.text import Inputs
from tanbr.serve.backends import bert_pass
from tanbr.serve.backends.backend import Backend, Size
from tanbr.serve.backends.choose import PRECISIONS, Precision, Way, chosen, gaps, instructions, refused
from tanbr.serve.decode import Row, decode, on_device
from tanbr.types import Blend, FloatArray

BRIEF = 0.01  # seconds
SHORT = 1 << 30  # tokens times parameters: below it, cores wait longer for each other between operations than they save
# (MiniLM's size, one text in bf16 at a time: 6.3 ms by one core, 8.6 by two)


class TorchEager(Backend):
    """A model, and the tensors of it that a merge writes."""

    name: ClassVar[str] = "torch"

    exact: "TorchEager | None"

    def __init__(
        self,
        model: Any,
        outputs: Mapping[str, Tensor],
        *,
        pooling: Pooling | None = None,
        exact: "TorchEager | None" = None,
    ) -> None:
        """Take a model, with how to pool its tokens if it has no head, and the same one in float32 if it is in int8."""
        self.exact = exact
        self.model, self._pooling, self.embeds = model, pooling, pooling is not None
        self.writes = bool(model.can_generate())
        self.short = 0 if self.writes else SHORT
        self.causal = self.writes and not model.config.is_encoder_decoder
        names = model.config.id2label
        labels = [names[column] for column in range(len(names))]
        numbers = [str(number) for number in range(model.config.hidden_size)] if self.embeds else []
        self.columns = () if self.writes else tuple(numbers or labels)
        self.outputs = outputs  # where merged tensors go, by name: the FFNs
        self._int8 = {name: module for name, module in model.named_modules() if isinstance(module, Int8Linear)}
        halves = any(tensor.dtype == torch.bfloat16 for tensor in outputs.values())
        self.precision = "int8" if self._int8 else "bf16" if halves else "fp32"
        self._lean = bert_pass.takes(model)

    @classmethod
    def build(cls, moe: Moe, **wanted: Any) -> "TorchEager":
        """Merge into a new model, in the precision that is asked for or serves best."""
        return build(moe, kinds=(cls,), **wanted)

    @classmethod
    def unable(cls, model: Any, precision: Precision) -> str:  # noqa: ARG003
        """Say why this backend cannot run a model in a precision; empty if it can."""
        return ""

    @classmethod
    def of(cls, exact: "TorchEager", moe: Moe, precision: Precision) -> Self:
        """Make a model in a precision of one in float32, with which it shares what stays as it was."""
        model = lowered(exact.model, moe, precision)
        beside = cls(exact.model, exact.outputs) if precision == "int8" and not exact.writes else None
        return cls(model, outputs_of(model, moe), pooling=exact._pooling, exact=beside)

    @property
    def size(self) -> Size:
        """What the model takes."""
        models = [self] if self.exact is None else [self, self.exact]
        nbytes, own = (
            sum({storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in some}.values())
            for some in (
                [tensor for one in models for tensor in tensors_of(one.model)],
                [tensor for one in models for tensor in one._own()],
            )
        )
        return Size(sum(tensor.numel() for tensor in tensors_of(self.model)), nbytes, own)

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) into the FFNs, resting between tensors so that at most `share` of the time is work."""
        started = time.perf_counter()
        written = self.exact or (None if self._int8 else self)  # whose own tensors the experts are merged into
        into = None if written is None else written.outputs.__getitem__
        for name, tensor in moe.tensors(blend, into=into, changing=True):
            finite(name, tensor)
            if written is not self:
                self._put(name, tensor)
            moe.release()
            started = rest(started, share)

    @torch.no_grad()
    def _put(self, name: str, tensor: Tensor) -> None:
        if (int8 := self._int8.get(name.removesuffix(".weight"))) is not None and name.endswith(".weight"):
            int8.load(tensor)
        else:
            self.outputs[name].copy_(tensor)

    def twin(self, moe: Moe) -> Self:
        """Make a second one that shares every tensor but the FFNs'."""
        own = {storage_of(tensor) for tensor in self._own()}
        shared = {id(tensor): tensor for tensor in tensors_of(self.model) if storage_of(tensor) not in own}
        exact = None
        if self.exact is not None:  # what both have in float32 they share in the twin, too
            exact = self.exact.twin(moe)
            shared |= {
                id(old): new for old, new in zip(tensors_of(self.exact.model), tensors_of(exact.model), strict=True)
            }
        model = copy.deepcopy(self.model, dict(shared))
        other = type(self)(model, outputs_of(model, moe), pooling=self._pooling, exact=exact)
        other.agreement, other.margin = self.agreement, self.margin
        return other

    def _own(self) -> list[Tensor]:
        maps = (self._int8.get(name.removesuffix(".weight")) for name in self.outputs)
        return [*self.outputs.values(), *(int8.scale for int8 in maps if int8 is not None)]

    def classify(self, inputs: Inputs) -> FloatArray:
        """Answer padded texts: logits, or the numbers of vectors (n, columns)."""
        logits = self._answers(inputs)
        close = np.flatnonzero(gaps(logits) <= self.margin) if self.exact is not None and self.margin else ()
        if self.exact is not None and len(close):
            length = inputs["attention_mask"][close].sum(axis=1).max()
            logits[close] = self.exact.classify({name: table[close, :length] for name, table in inputs.items()})
        return logits

    @torch.inference_mode()
    def _answers(self, inputs: Inputs) -> FloatArray:
        tensors = on_device(inputs, self.model)
        if self._pooling is not None:
            found = self._pooling(self.model(**tensors).last_hidden_state, tensors["attention_mask"])
        else:
            found = bert_pass.logits(self.model, **tensors) if self._lean else self.model(**tensors).logits
        logits: FloatArray = found.double().cpu().numpy()
        return logits

    def generate(self, inputs: Inputs, rows: Sequence[Row]) -> None:
        """Answer padded prompts."""
        decode(self.model, inputs, rows)


def build(
    moe: Moe,
    *,
    kinds: tuple[type[TorchEager], ...],
    blend: Blend | None,
    device: str,
    precision: Precision | Literal["auto"],
    probes: Callable[[], Sequence[Inputs]],
    models: int = 1,  # noqa: ARG001 - of no matter here
) -> TorchEager:
    """Merge into a new model that one of these backends runs; which, and in which precision, a trial decides."""
    asked, place = precision, device_of(device)
    if asked != "auto" and (no := refused(asked, device)) is not None:
        raise no
    model = moe.dense(blend).to(place).eval()
    bare = moe.plan.config().architectures[0].endswith("Model")
    exact = TorchEager(model, outputs_of(model, moe), pooling=Pooling.of(moe.path) if bare else None)
    fixed = exact.writes or exact.embeds  # no trial: nobody can say that another precision answers alike
    native = ("fp32", *(() if fixed else instructions(device)))
    wants: tuple[Precision, ...] = tuple(
        one for one in PRECISIONS if one == asked or (asked == "auto" and one in native)
    )
    why = {(kind, one): kind.unable(model, one) for kind in kinds for one in wants}
    ways = [
        Way(kind.name, one, partial(kind.of, exact, moe, one))
        for kind, one in why
        if not why[kind, one] and (kind is kinds[0] or device == "cpu")
    ]
    if not ways:
        raise InputError(next(iter(why.values())))
    asks = len(ways) > 1 or asked in ("bf16", "int8")
    made: TorchEager = chosen(exact, ways, probes() if asks else (), device=device, asked=asked)
    return made


def lowered(model: Any, moe: Moe, precision: Precision) -> Any:
    """Copy a model in float32 into another precision; what the copy has in float32 it shares."""
    if precision == "fp32":
        return model
    if precision == "bf16":
        return copy.deepcopy(model).to(torch.bfloat16)
    if model.config.architectures[0].endswith("Model"):
        raise InputError("int8 is measured by the answers that stay the same, and vectors have none; use fp32 or bf16")
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    blended = {name.removesuffix(".weight") for name in moe.plan.targets(changing=True)}
    if not blended & linear:
        raise InputError("a blend changes no linear map of this model's class; serve it in fp32 or bf16")
    return quantised(model, only=linear - bert_pass.of_one_token(model))


def outputs_of(model: nn.Module, moe: Moe) -> dict[str, Tensor]:
    """Find where in a model merged tensors go, by name."""
    int8 = {f"{name}.weight": one.values for name, one in model.named_modules() if isinstance(one, Int8Linear)}
    return {name: int8[name] if name in int8 else locate(model, name) for name in moe.plan.targets(changing=True)}


def tensors_of(model: nn.Module) -> list[Tensor]:
    """List a model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def storage_of(tensor: Tensor) -> int:
    """Tell where a tensor's values lie."""
    return tensor.untyped_storage().data_ptr()


def rest(started: float, share: float) -> float:
    """Sleep until the time since `started` is `share` of all, if it is worth it; when the next work starts."""
    worked = time.perf_counter() - started
    if share < 1 and worked < BRIEF:
        return started
    time.sleep(worked * (1 / share - 1))
    return time.perf_counter()
