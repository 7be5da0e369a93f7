"""OLMoE and FlexOlmo.

OLMoE is pre-norm with full-width q/k norms, which no dense class is: its own class with one expert holds a merge.
FlexOlmo's experts share an anchor, and Olmo2 holds a merge of them; the norm behind its FFN takes out whatever factor
the router's mass has left.
"""

from tanbr.moe.families.gated import gated_experts, single_expert, top_k_mass
from tanbr.moe.family import Family

OLMOE = Family(
    model_type="olmoe",
    dense="olmoe",
    prefix=("Olmoe", "Olmoe"),
    count="num_experts",
    experts=single_expert(),
    settings=lambda _: {"num_experts": 1, "num_experts_per_tok": 1},
    fold=top_k_mass,
)


FLEX_OLMO = Family(
    model_type="flex_olmo",
    dense="olmo2",
    prefix=("FlexOlmo", "Olmo2"),
    count="num_experts",
    experts=gated_experts(),
    drop=(r"\.mlp\.gate\.weight$",),
    fold=top_k_mass,
)
