"""T5-MoE: T5 with K experts in every FFN, ReLU or gated. On disk each FFN tensor is T5's own, with a leading K."""

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration
from transformers.activations import ACT2FN

from tanbr.moe.family import Family, in_place
from tanbr.moe.layer import ExpertFfn, ExpertLinear, MoeSite


class T5MoeConfig(T5Config):
    """T5's configuration and the number of experts."""

    model_type = "t5_moe"

    num_experts: int = 8
    router: bool = False  # whether each site has a learned gate, for token- and sequence-level routing


class T5MoeFfn(MoeSite):
    """T5's feed-forward network as K experts."""

    def __init__(self, config: T5MoeConfig) -> None:
        super().__init__()
        K, D, F = config.num_experts, config.d_model, config.d_ff
        self._inner = ("wi_0", "wi_1") if config.is_gated_act else ("wi",)
        for name in self._inner:
            setattr(self, name, ExpertLinear(K, D, F, bias=False, std=config.initializer_factor * D**-0.5))
        self.wo = ExpertLinear(K, F, D, bias=False, std=config.initializer_factor * F**-0.5)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.act = ACT2FN[config.dense_act_fn]
        self.gate = nn.Linear(D, K, bias=False) if config.router else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Run the FFN on (n, length, D)."""
        inner: list[Any] = [getattr(self, name) for name in self._inner]
        return ExpertFfn(inner=inner, outer=self.wo, act=self.act, dropout=self.dropout)(hidden_states, self)


class T5MoeForConditionalGeneration(T5ForConditionalGeneration):
    """T5-MoE, encoder and decoder."""

    config_class = T5MoeConfig

    def __init__(self, config: T5MoeConfig) -> None:
        super().__init__(config)
        for block in (*self.encoder.block, *self.decoder.block):
            block.layer[-1].DenseReluDense = T5MoeFfn(config)


AutoConfig.register("t5_moe", T5MoeConfig)
AutoModelForSeq2SeqLM.register(T5MoeConfig, T5MoeForConditionalGeneration)

T5 = Family(
    model_type="t5_moe",
    dense="t5",
    prefix=("T5Moe", "T5"),
    experts=in_place({
        "{site}.DenseReluDense.wi.weight": "up", "{site}.DenseReluDense.wi_0.weight": "gate",
        "{site}.DenseReluDense.wi_1.weight": "up", "{site}.DenseReluDense.wo.weight": "down",
    }),
    drop=(r"\.gate\.weight$",),
    width=("d_ff",),
)  # fmt: skip
