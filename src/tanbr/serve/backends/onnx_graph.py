"""A BERT classifier as an ONNX graph whose weights come from outside, by the names and in the layout torch has them.

It is written out rather than exported: an exporter, or an optimiser, turns weights into copies of itself (transposed,
folded), and a merge into the originals would change nothing. It is the pass of `bert_pass.py`, padding included.
"""

import math
from typing import Any

import numpy as np

OPSET, CONTRIB = 17, "com.microsoft"  # the contributed operators have ONNX Runtime's own kernels


def graph(config: Any, *, masked: bool) -> tuple[bytes, list[str]]:
    """Write the graph of a BERT's configuration, for texts of one length or, `masked`, of any; and the weights' names.

    Inputs are input_ids, token_type_ids and attention_mask (n, length), the output is `logits` (n, columns).
    """
    from onnx import TensorProto, helper

    graph = _Graph(config, masked=masked)
    graph.write()
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info(name, whole, ["n", "length"])
        for name in ("input_ids", "token_type_ids", *(["attention_mask"] if masked else []))
    ]
    output = helper.make_tensor_value_info("logits", floats, ["n", config.num_labels])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "bert", inputs, [output], graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
        ir_version=10,
    )
    return made.SerializeToString(), list(graph.weights)


class _Graph:
    """Nodes in the order they are computed."""

    def __init__(self, config: Any, *, masked: bool) -> None:
        self.config, self.masked = config, masked
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.weights: dict[str, tuple[int, ...]] = {}

    def op(self, kind: str, *inputs: str, domain: str = "", to: str = "", **attributes: Any) -> str:
        """Add an operator; the name of what it gives."""
        from onnx import helper

        output = to or f"{kind}-{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], domain=domain, **attributes))
        return output

    def cast(self, x: str, kind: str) -> str:
        """Turn into another type of number, by ONNX's name of it."""
        from onnx import TensorProto, helper

        output = f"Cast-{len(self.nodes)}"
        self.nodes.append(helper.make_node("Cast", [x], [output], to=getattr(TensorProto, kind)))
        return output

    def const(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant; its name."""
        from onnx import numpy_helper

        name = f"constant-{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Take a weight from outside: the graph says that it lies in a file, which there is none of."""
        from onnx import TensorProto

        if name not in self.weights:
            self.weights[name] = shape
            place = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            place.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "torch"), ("offset", 0), ("length", 4 * math.prod(shape))):
                place.external_data.add(key=key, value=str(value))
            self.constants.append(place)
        return name

    def linear(self, x: str, module: str, inner: int, outer: int, *, to: str = "") -> str:
        """Map (rows, inner) to (rows, outer)."""
        weight, bias = self.weight(f"{module}.weight", outer, inner), self.weight(f"{module}.bias", outer)
        return self.op("Gemm", x, weight, bias, transB=1, to=to)

    def joined(self, x: str, before: str, module: str, inner: int) -> str:
        """Map, add what was there before, norm."""
        D = self.config.hidden_size
        norm = [self.weight(f"{module}.LayerNorm.{name}", D) for name in ("weight", "bias")]
        mapped = self.linear(x, f"{module}.dense", inner, D)
        return self.op(
            "SkipLayerNormalization", mapped, before, *norm, domain=CONTRIB, epsilon=self.config.layer_norm_eps
        )

    def ffn(self, x: str, layer: str) -> str:
        D, inner = self.config.hidden_size, self.config.intermediate_size
        up = self.linear(x, f"{layer}.intermediate.dense", D, inner)
        return self.joined(self.op("Gelu", up, domain=CONTRIB), x, f"{layer}.output", inner)

    def write(self) -> None:
        """Add everything."""
        config, D = self.config, self.config.hidden_size
        self.shape = self.op("Concat", self.op("Shape", "input_ids"), self.const([D]), axis=0)  # (n, length, D)
        hidden = self.embedded()
        *layers, last = (f"bert.encoder.layer.{number}" for number in range(config.num_hidden_layers))
        for layer in layers:
            hidden = self.ffn(self.attended(hidden, f"{layer}.attention"), layer)
        first = self.ffn(self.first_attended(hidden, f"{last}.attention"), last)
        pooled = self.op("Tanh", self.linear(first, "bert.pooler.dense", D, D))
        self.linear(pooled, "classifier", D, config.num_labels, to="logits")

    def embedded(self) -> str:
        """Look tokens up: (n · length, D)."""
        config, D, part = self.config, self.config.hidden_size, "bert.embeddings"
        words = self.op(
            "Gather", self.weight(f"{part}.word_embeddings.weight", config.vocab_size, D), "input_ids", axis=0
        )
        types = self.weight(f"{part}.token_type_embeddings.weight", config.type_vocab_size, D)
        table = self.weight(f"{part}.position_embeddings.weight", config.max_position_embeddings, D)
        length = self.op("Slice", self.shape, self.const([1]), self.const([2]), self.const([0]))
        positions = self.op("Slice", table, self.const([0]), length, self.const([0]))
        both = self.op("Add", words, self.op("Gather", types, "token_type_ids", axis=0))
        norm = [self.weight(f"{part}.LayerNorm.{name}", D) for name in ("weight", "bias")]
        normed = self.op(
            "LayerNormalization", self.op("Add", both, positions), *norm, epsilon=config.layer_norm_eps, axis=-1
        )
        return self.flat(normed)

    def flat(self, x: str) -> str:
        """(n, length, D) → (n · length, D)."""
        return self.op("Reshape", x, self.const([-1, self.config.hidden_size]))

    def attended(self, hidden: str, part: str) -> str:
        """Run a layer's attention over (n · length, D)."""
        D = self.config.hidden_size
        query, key, value = (
            self.op("Reshape", self.linear(hidden, f"{part}.self.{name}", D, D), self.shape)
            for name in ("query", "key", "value")
        )
        mask = ["", self.cast("attention_mask", "INT32")] if self.masked else []
        mixed = self.op(
            "MultiHeadAttention",
            query,
            key,
            value,
            *mask,
            domain=CONTRIB,
            num_heads=self.config.num_attention_heads,
        )
        return self.joined(self.flat(mixed), hidden, f"{part}.output", D)

    def first_attended(self, hidden: str, part: str) -> str:
        """Run a layer's attention for the first token of each text alone: (n · length, D) → (n, D)."""
        D, heads = self.config.hidden_size, self.config.num_attention_heads
        d = D // heads
        states = self.op("Reshape", hidden, self.shape)  # (n, length, D)
        first = self.op("Gather", states, self.const(0), axis=1)
        by_head = self.const([heads, d, D])
        key = self.op("Reshape", self.weight(f"{part}.self.key.weight", D, D), by_head)
        value = self.op("Reshape", self.weight(f"{part}.self.value.weight", D, D), by_head)
        query = self.op("Reshape", self.linear(first, f"{part}.self.query", D, D), self.const([-1, heads, d]))
        asked = self.op("MatMul", self.op("Transpose", query, perm=[1, 0, 2]), key)  # (heads, n, D)
        scores = self.fused(self.op("Transpose", asked, perm=[1, 0, 2]), states, alpha=d**-0.5)  # (n, heads, length)
        if self.masked:
            real = self.op("Unsqueeze", self.cast("attention_mask", "BOOL"), self.const([1]))
            scores = self.op("Where", real, scores, self.const(-np.inf, np.float32))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), states)  # (n, heads, D)
        mixed = self.fused(self.op("Transpose", mixed, perm=[1, 0, 2]), value)  # (heads, n, d)
        mixed = self.op("Reshape", self.op("Transpose", mixed, perm=[1, 0, 2]), self.const([-1, D]))
        mixed = self.op("Add", mixed, self.weight(f"{part}.self.value.bias", D))
        return self.joined(mixed, first, f"{part}.output", D)

    def fused(self, one: str, other: str, alpha: float = 1.0) -> str:
        """Multiply by the transposed other, a matrix at a time."""
        return self.op("FusedMatMul", one, other, domain=CONTRIB, transB=1, alpha=alpha)
