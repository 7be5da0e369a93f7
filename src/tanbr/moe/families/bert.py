"""BERT-MoE: BERT with K experts in every FFN. On disk each FFN tensor is BERT's own, with a leading dimension K."""

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertLayer

from tanbr.moe.family import Family, in_place
from tanbr.moe.layer import ExpertFfn, ExpertLinear, MoeSite


class BertMoeConfig(BertConfig):
    """BERT's configuration and the number of experts."""

    model_type = "bert_moe"

    num_experts: int = 8
    router: bool = False  # whether each site has a learned gate, for token- and sequence-level routing


class BertMoeLayer(MoeSite, BertLayer):
    """A BERT layer whose FFN is K experts."""

    intermediate: Any
    output: Any

    def __init__(self, config: BertMoeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        K, D, F = config.num_experts, config.hidden_size, config.intermediate_size
        std = config.initializer_range
        self.intermediate.dense = ExpertLinear(K, D, F, bias=True, std=std)
        self.output.dense = ExpertLinear(K, F, D, bias=True, std=std)
        self.gate = nn.Linear(D, K, bias=False) if config.router else None

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        """Run the FFN on (n, length, D)."""
        inner, outer, act = [self.intermediate.dense], self.output.dense, self.intermediate.intermediate_act_fn
        ffn = ExpertFfn(inner, outer, act, nn.Identity())
        hidden: Tensor = self.output.dropout(ffn(attention_output, self))
        normed: Tensor = self.output.LayerNorm(hidden + attention_output)
        return normed


class BertMoeForSequenceClassification(BertForSequenceClassification):
    """BERT-MoE with one classification head over the union of the tasks' labels."""

    config_class = BertMoeConfig

    def __init__(self, config: BertMoeConfig) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.bert.encoder.layer[index] = BertMoeLayer(config, index)


AutoConfig.register("bert_moe", BertMoeConfig)
AutoModelForSequenceClassification.register(BertMoeConfig, BertMoeForSequenceClassification)

BERT = Family(
    model_type="bert_moe",
    dense="bert",
    prefix=("BertMoe", "Bert"),
    experts=in_place({
        "{site}.intermediate.dense.weight": "up", "{site}.intermediate.dense.bias": "up_bias",
        "{site}.output.dense.weight": "down", "{site}.output.dense.bias": "down_bias",
    }),
    drop=(r"\.gate\.weight$",),
)  # fmt: skip
