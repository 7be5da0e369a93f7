"""A BERT classifier run by ONNX Runtime, over the very memory of torch's tensors: what a merge writes there is served.

ONNX Runtime packs weights into copies unless it is told not to; optimisers and exporters make copies, too. So the graph
is written out here, fused by hand, over torch's own weights; it is the pass of `bert_pass.py`, padding included.
"""

import logging
import math
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tanbr.merge.int8 import Int8Linear
from tanbr.moe.text import Inputs
from tanbr.serve.backends import bert_pass
from tanbr.serve.backends.choose import Precision
from tanbr.serve.backends.torch_eager import TorchEager
from tanbr.types import FloatArray

log = logging.getLogger("tanbr.serve")

TOKENS = 512  # of one pass, about: its products of matrices are quickest while their rows stay in the processor's cache
GELU_LEAST, GELU_ZERO = -0.17, 16  # its least value, and which of the integers 0 … 255 stands for 0 in its answers
OPSET, CONTRIB = 17, "com.microsoft"  # the contributed operators have ONNX Runtime's own kernels


class OnnxRuntime(TorchEager):
    """A torch model, and sessions of ONNX Runtime that read its tensors."""

    name = "onnx"

    def __init__(self, model: Any, outputs: Mapping[str, Tensor], **beside: Any) -> None:
        super().__init__(model, outputs, **beside)
        self.short = 0  # its own threads do not sleep between operations
        self._sessions: dict[tuple[int, bool], Any] = {}  # threads, masked → session
        self._lock = threading.Lock()

    @classmethod
    def unable(cls, model: Any, precision: Precision) -> str:
        """Say why ONNX Runtime cannot run a model in a precision."""
        if precision == "bf16":
            return "the backend onnx has no bf16; serve with --backend torch, or in fp32 or int8"
        if (odd := _not_runnable(model)) is not None:
            return f"the backend onnx runs BERT classifiers on the CPU (got {odd}); serve with --backend torch"
        for package in ("onnx", "onnxruntime"):
            try:
                import_module(package)
            except Exception as error:  # one that is there may still fail to load
                named = "" if isinstance(error, ModuleNotFoundError) else f" ({str(error).strip().splitlines()[0]})"
                need = f"the backend onnx needs {package}{named}"
                why = f"{need}; pip install 'tanbr[onnx]', or serve with --backend torch"
                if named:
                    log.warning(why)
                return why
        return ""

    def _answers(self, inputs: Inputs) -> FloatArray:
        masked = not inputs["attention_mask"].all()
        ids = inputs["input_ids"]
        fed = {"input_ids": ids, "token_type_ids": inputs.get("token_type_ids", np.zeros_like(ids))}
        fed |= {"attention_mask": inputs["attention_mask"]} if masked else {}
        key = torch.get_num_threads(), masked  # the threads of the calling worker
        with self._lock:
            if key not in self._sessions:  # all of them read the same weights
                self._sessions[key] = session(self.model, threads=key[0], masked=masked)
        some = max(1, TOKENS // ids.shape[1])
        parts = [
            self._sessions[key].run(["logits"], {name: table[start : start + some] for name, table in fed.items()})[0]
            for start in range(0, len(ids), some)
        ]
        return np.concatenate(parts).astype(np.float64)


def _not_runnable(model: Any) -> str | None:
    """Say what about a model the graph below does not compute; None if it can run it."""
    if not bert_pass.takes(model):
        return type(model).__name__
    if model.config.hidden_act != "gelu":
        return f"the activation {model.config.hidden_act}"
    if model.device.type != "cpu":
        return f"device {model.device.type}"
    return next((str(p.dtype) for p in model.parameters() if p.dtype != torch.float32), None)


def session(model: Any, *, threads: int, masked: bool) -> Any:
    """Make a session over a model's own memory."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # nothing that is served is told to anybody
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it folds weights away
    options.add_session_config_entry("session.disable_prepacking", "1")  # or it takes copies, and sees no merge
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    int8 = frozenset(name for name, module in model.named_modules() if isinstance(module, Int8Linear))
    data, names = graph(model.config, masked=masked, int8=int8)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(tensors[name].detach().numpy()) for name in names]
    options.add_external_initializers(names, values)  # it would look for a file otherwise, but this makes copies …
    for name, value in zip(names, values, strict=True):
        options.add_initializer(name, value)  # … and this does not
    made = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    made.weights = values  # they must live as long
    return made


def graph(config: Any, *, masked: bool, int8: frozenset[str] = frozenset()) -> tuple[bytes, list[str]]:
    """Write the graph of a BERT's configuration, for texts of one length or, `masked`, of any; and the weights' names.

    The maps named in `int8` have their weights so (`merge.int8.Int8Linear`).
    """
    from onnx import TensorProto, helper

    graph = _Graph(config, masked=masked, int8=int8)
    hidden = graph.embedded()
    *layers, last = (f"bert.encoder.layer.{number}" for number in range(config.num_hidden_layers))
    for layer in layers:
        hidden = graph.ffn(graph.attended(hidden, f"{layer}.attention"), layer)
    first = graph.ffn(graph.first_attended(hidden, f"{last}.attention"), last)
    pooled = graph.op("Tanh", graph.linear(first, "bert.pooler.dense", graph.D, graph.D))
    graph.linear(pooled, "classifier", graph.D, config.num_labels, name="logits")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"])
        for name in ("input_ids", "token_type_ids", *(["attention_mask"] if masked else []))
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", config.num_labels])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "bert", inputs, [output], graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
        ir_version=10,
    )
    return made.SerializeToString(), list(graph.weights)


class _Graph:
    """Nodes in the order they are computed. Methods take and give names of tensors."""

    def __init__(self, config: Any, *, masked: bool, int8: frozenset[str]) -> None:
        import onnx

        self.onnx, self.config, self.masked, self.D, self.int8 = onnx, config, masked, config.hidden_size, int8
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.weights: dict[str, None] = {}  # the names, in order
        self.rounded: dict[str, tuple[str, str]] = {}  # tokens → the same in 8 bits, and the step of each
        self.shape = self.op("Concat", self.op("Shape", "input_ids"), self.const([self.D]), axis=0)  # (n, length, D)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add an operator."""
        output = name or f"{kind}-{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def const(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        name = f"constant-{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def weight(self, name: str, *shape: int, int8: bool = False) -> str:
        """Take a weight from outside: the graph says that it lies in a file, which does not exist."""
        if name not in self.weights:
            self.weights[name] = None
            proto = self.onnx.TensorProto
            kind, nbytes = (proto.INT8, 1) if int8 else (proto.FLOAT, 4)
            place = proto(name=name, data_type=kind, dims=shape, data_location=proto.EXTERNAL)
            for key, value in (("location", "torch"), ("offset", 0), ("length", nbytes * math.prod(shape))):
                place.external_data.add(key=key, value=str(value))
            self.constants.append(place)
        return name

    def linear(self, x: str, module: str, inner: int, outer: int, *, name: str = "", zero: int = 128) -> str:
        """Map (rows, inner) to (rows, outer); `zero` is for `in_8_bits`."""
        bias = self.weight(f"{module}.bias", outer)
        if module not in self.int8:
            return self.op("Gemm", x, self.weight(f"{module}.weight", outer, inner), bias, transB=1, name=name)
        values = self.weight(f"{module}.values", inner, outer, int8=True)
        scale, one = self.weight(f"{module}.scale", outer), self.const(1, np.float32)
        rounded, steps = self.in_8_bits(x, zero)
        none = self.const(zero, np.uint8)
        sums = self.op("MatMulIntegerToFloat", rounded, values, one, scale, none, domain=CONTRIB)
        return self.op("Add", self.op("Mul", sums, steps), bias, name=name)

    def in_8_bits(self, x: str, zero: int) -> tuple[str, str]:
        """Round tokens (rows, inner), each by a step (rows, 1) of its own; the integer `zero` stands for 0.

        In the middle it leaves as much room below 0 as above. GELU gives nothing below −0.17, so it needs less there.
        """
        if x not in self.rounded:
            above = zero == GELU_ZERO
            most = x if above else self.op("Abs", x)
            least = -GELU_LEAST * (255 - zero) / zero if above else np.finfo(np.float32).tiny
            most = self.op("ReduceMax", most, axes=[-1], keepdims=1)
            most = self.op("Max", most, self.const(least, np.float32))
            steps = self.op("Mul", most, self.const(1 / (255 - zero), np.float32))
            whole = self.op("Mul", x, self.op("Reciprocal", steps))
            one, none = self.const(1, np.float32), self.const(zero, np.uint8)
            self.rounded[x] = self.op("QuantizeLinear", whole, one, none), steps
        return self.rounded[x]

    def norm(self, x: str, module: str) -> str:
        """Norm the tokens; ONNX Runtime's operator that also adds takes five times as long as the two."""
        weights = [self.weight(f"{module}.LayerNorm.{name}", self.D) for name in ("weight", "bias")]
        return self.op("LayerNormalization", x, *weights, epsilon=self.config.layer_norm_eps, axis=-1)

    def joined(self, x: str, before: str, module: str, inner: int, *, zero: int = 128) -> str:
        """Map, add the input from before, norm."""
        mapped = self.linear(x, f"{module}.dense", inner, self.D, zero=zero)
        return self.norm(self.op("Add", mapped, before), module)

    def ffn(self, x: str, layer: str) -> str:
        inner = self.config.intermediate_size
        up = self.linear(x, f"{layer}.intermediate.dense", self.D, inner)
        return self.joined(self.op("Gelu", up, domain=CONTRIB), x, f"{layer}.output", inner, zero=GELU_ZERO)

    def embedded(self) -> str:
        """Look tokens up: (n · length, D)."""
        config, part = self.config, "bert.embeddings"
        words = self.weight(f"{part}.word_embeddings.weight", config.vocab_size, self.D)
        types = self.weight(f"{part}.token_type_embeddings.weight", config.type_vocab_size, self.D)
        places = self.weight(f"{part}.position_embeddings.weight", config.max_position_embeddings, self.D)
        length = self.op("Slice", self.shape, self.const([1]), self.const([2]), self.const([0]))
        whole = self.op("Gather", words, "input_ids", axis=0)
        whole = self.op("Add", whole, self.op("Gather", types, "token_type_ids", axis=0))
        whole = self.op("Add", whole, self.op("Slice", places, self.const([0]), length, self.const([0])))
        return self.flat(self.norm(whole, part))

    def flat(self, x: str) -> str:
        """(n, length, D) → (n · length, D)."""
        return self.op("Reshape", x, self.const([-1, self.D]))

    def attended(self, hidden: str, part: str) -> str:
        """Run a layer's attention over (n · length, D)."""
        query, key, value = (
            self.op("Reshape", self.linear(hidden, f"{part}.self.{name}", self.D, self.D), self.shape)
            for name in ("query", "key", "value")
        )
        mask = ["", self.op("Cast", "attention_mask", to=self.onnx.TensorProto.INT32)] if self.masked else []
        heads = self.config.num_attention_heads
        mixed = self.op("MultiHeadAttention", query, key, value, *mask, domain=CONTRIB, num_heads=heads)
        return self.joined(self.flat(mixed), hidden, f"{part}.output", self.D)

    def first_attended(self, hidden: str, part: str) -> str:
        """Run a layer's attention for the first token of each text alone: (n · length, D) → (n, D)."""
        D, heads = self.D, self.config.num_attention_heads
        d = D // heads
        states = self.op("Reshape", hidden, self.shape)  # (n, length, D)
        first = self.op("Gather", states, self.const(0), axis=1)
        by_head = self.const([heads, d, D])
        key = self.op("Reshape", self.weight(f"{part}.self.key.weight", D, D), by_head)
        value = self.op("Reshape", self.weight(f"{part}.self.value.weight", D, D), by_head)
        query = self.op("Reshape", self.linear(first, f"{part}.self.query", D, D), self.const([-1, heads, d]))
        asked = self.op("MatMul", self.op("Transpose", query, perm=[1, 0, 2]), key)  # (heads, n, D)
        scores = self.times_transposed(self.op("Transpose", asked, perm=[1, 0, 2]), states, alpha=d**-0.5)
        if self.masked:  # (n, heads, length)
            real = self.op("Cast", "attention_mask", to=self.onnx.TensorProto.BOOL)
            real = self.op("Unsqueeze", real, self.const([1]))
            scores = self.op("Where", real, scores, self.const(-np.inf, np.float32))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), states)  # (n, heads, D)
        mixed = self.times_transposed(self.op("Transpose", mixed, perm=[1, 0, 2]), value)  # (heads, n, d)
        mixed = self.op("Reshape", self.op("Transpose", mixed, perm=[1, 0, 2]), self.const([-1, D]))
        mixed = self.op("Add", mixed, self.weight(f"{part}.self.value.bias", D))
        return self.joined(mixed, first, f"{part}.output", D)

    def times_transposed(self, one: str, other: str, alpha: float = 1.0) -> str:
        """Multiply by the transposed other, a matrix at a time."""
        return self.op("FusedMatMul", one, other, domain=CONTRIB, transB=1, alpha=alpha)
