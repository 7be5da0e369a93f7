"""SMEAR: a gate's probabilities merge the experts' weights, per token as the paper has it, or per sequence.

Muqeeth, Liu, Raffel: Soft Merging of Experts with Adaptive Routing. TMLR (2024). Its authors merge once a sequence,
from the mean of its tokens. In a decoder that mean would let the gate see the answer that it is to give, so the
decoder's gates read the mean of the encoder's output.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tanbr.lab.gates import Gated, Inputs, RowLosses, decoder_sites, gates_of
from tanbr.moe.layer import BlendRouting, Routing, SequenceRouting, TokenRouting, mean_token, routed


class Smear(Gated):
    """One merged FFN for every token or sequence, of all K experts; the task loss alone teaches the gates."""

    def __init__(self, model: Any, *, per: Literal["token", "sequence"] = "token", seed: int = 0) -> None:
        super().__init__(model, seed=seed)
        self.per = per

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Mean task loss."""
        with self.serving(inputs):
            return row_losses().mean()

    @contextmanager
    def serving(self, inputs: Inputs) -> Iterator[None]:
        """Merge by what the gates say to this batch."""
        experts = gates_of(self.model)[0].out_features
        routing: Routing = TokenRouting(experts, mix="products")
        if self.per == "sequence":
            routing = SequenceRouting(inputs["attention_mask"])
        with routed(self.model, routing):
            answering = decoder_sites(self.model) if self.per == "sequence" else []
            if not answering:
                yield
                return

            def route_decoder(_: nn.Module, __: Any, output: Any) -> None:
                summary = mean_token(output.last_hidden_state, inputs["attention_mask"])  # (n, D)
                for site in answering:
                    assert site.gate is not None  # noqa: S101 - gates_of has seen it
                    site.routing = BlendRouting(site.gate(summary).softmax(dim=-1))

            hook = self.model.get_encoder().register_forward_hook(route_decoder)
            try:
                yield
            finally:
                hook.remove()
