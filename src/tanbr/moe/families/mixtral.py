"""Mixtral: top-k weights are normalised, so Mistral holds a merge exactly."""

from tanbr.moe.families.gated import gated_experts
from tanbr.moe.family import Family

MIXTRAL = Family(
    model_type="mixtral",
    dense="mistral",
    prefix=("Mixtral", "Mistral"),
    count="num_local_experts",
    experts=gated_experts(experts="{site}.block_sparse_moe.experts", names=("w1", "w3", "w2")),
    drop=(r"\.(block_sparse_moe|mlp)\.gate\.weight$",),
    settings=lambda source: {"sliding_window": source["sliding_window"]},
)
