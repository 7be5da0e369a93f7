"""What a job will take, from the sizes of what it runs and the speed that was measured here a moment ago.

Two speeds are measured: multiplications a second, and the fixed cost of running one layer, however small. Large
models are bound by the first, small ones by the second.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BYTES = 4  # of a float32
BACKWARD = 3.0  # a training step, in forward passes
KEPT = 16  # values of width D that a layer keeps for the way back, for each token


@dataclass(frozen=True)
class Cost:
    """Work and room of a job."""

    flops: float = 0.0
    layers: float = 0.0  # layers run, however small
    memory: float = 0.0  # bytes resident at the peak
    disk: float = 0.0  # bytes left in OUT
    seconds: float = 0.0  # what follows from neither: of rounds that last as long as they may, of processes that start

    def __add__(self, other: "Cost") -> "Cost":
        """Do one after the other."""
        return Cost(
            self.flops + other.flops,
            self.layers + other.layers,
            max(self.memory, other.memory),
            self.disk + other.disk,
            self.seconds + other.seconds,
        )

    def times(self, count: float) -> "Cost":
        """Do it `count` times, over the same files."""
        return Cost(self.flops * count, self.layers * count, self.memory, self.disk, self.seconds * count)


@dataclass(frozen=True)
class Speed:
    """How fast this machine is."""

    flops: float  # a second
    layer: float  # seconds of a layer that has nothing to do

    def seconds(self, cost: Cost) -> float:
        """Estimate how long work takes."""
        return cost.flops / self.flops + cost.layers * self.layer + cost.seconds


@torch.inference_mode()
def measure() -> Speed:
    """Take the CPU time of products of the size of a BERT-base FFN, and of a layer whose size does not matter."""
    big, rows = nn.Linear(768, 3072, bias=False), torch.zeros(256, 768)
    small = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
    few = torch.zeros(1, 4, 16)
    product, layer = _fastest(lambda: big(rows)), _fastest(lambda: small(few))
    return Speed(flops=2 * 256 * 768 * 3072 / product, layer=layer)


def _fastest(call: Any, *, repeats: int = 12) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()  # other work on the machine does not count
        call()
        times.append(time.process_time() - start)
    return min(times)


@dataclass(frozen=True)
class ModelSize:
    """The shape of an MoE, as far as costs depend on it."""

    width: int  # D
    ffn: int  # F
    encoder: int  # layers
    decoder: int  # layers, 0 for an encoder alone
    experts: int  # K
    words: int  # in the vocabulary

    @property
    def layers(self) -> int:
        """Layers in all."""
        return self.encoder + self.decoder

    @property
    def dense(self) -> int:
        """Parameters of a merged model, near enough."""
        attention = 4 * self.width**2 * (self.encoder + 2 * self.decoder)
        return attention + 2 * self.width * self.ffn * self.layers + self.words * self.width

    @property
    def whole(self) -> int:
        """Parameters of all experts and the rest."""
        return self.dense + (self.experts - 1) * 2 * self.width * self.ffn * self.layers

    def forward(self, *, rows: int, length: int, written: int = 1, experts: float = 1.0) -> Cost:
        """Cost of answering `rows` texts with so many experts active a token; a decoder writes `written` tokens."""
        per_layer = 4 * self.width**2 + 2 * self.width * self.ffn * experts
        encoder = 2 * rows * length * self.encoder * (per_layer + 2 * length * self.width)
        decoder = 2 * rows * written * (self.decoder * (per_layer + 4 * self.width**2) + self.words * self.width)
        runs = self.encoder + written * self.decoder
        memory = BYTES * (self.dense + (self.whole if experts > 1 else 0) + rows * length * (self.ffn + 8 * self.width))
        return Cost(flops=encoder + (decoder if self.decoder else 0), layers=runs * max(1.0, experts), memory=memory)

    def training(self, *, rows: int, length: int, experts: float = 1.0) -> Cost:
        """Cost of a step through a merged model, or through one whose gates are trained."""
        forward = self.forward(rows=rows, length=length, written=2, experts=experts)
        activations = BYTES * rows * length * self.layers * experts * (KEPT * self.width + 2 * self.ffn)
        return Cost(BACKWARD * forward.flops, BACKWARD * forward.layers, forward.memory + activations)

    def merge(self) -> Cost:
        """Cost of merging all experts once."""
        ffns = 2 * self.width * self.ffn * self.layers * self.experts
        return Cost(
            flops=8 * ffns, layers=self.layers / 2, memory=BYTES * (self.dense + self.whole)
        )  # bound by reading

    @classmethod
    def of(cls, config: dict[str, Any]) -> "ModelSize":
        """Read a checkpoint's configuration."""
        if "d_model" in config:
            layers = config["num_layers"]
            decoder = config.get("num_decoder_layers") or layers
            return cls(config["d_model"], config["d_ff"], layers, decoder, config["num_experts"], config["vocab_size"])
        return cls(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            0,
            config["num_experts"],
            config["vocab_size"],
        )
