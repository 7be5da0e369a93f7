"""GraniteMoE: top-k logits are softmaxed among themselves, so Granite, with its four multipliers, holds a merge."""

from tanbr.moe.families.gated import DOWN, GATE, UP
from tanbr.moe.family import ExpertPattern, Family

GRANITE = Family(
    model_type="granitemoe",
    dense="granite",
    prefix=("GraniteMoe", "Granite"),
    count="num_local_experts",
    experts=(
        ExpertPattern("{site}.block_sparse_moe.input_linear.weight", {"gate": GATE, "up": UP}),
        ExpertPattern("{site}.block_sparse_moe.output_linear.weight", {"down": DOWN}),
        ExpertPattern("{site}.block_sparse_moe.experts.gate_up_proj", {"gate": GATE, "up": UP}),
        ExpertPattern("{site}.block_sparse_moe.experts.down_proj", {"down": DOWN}),
    ),
    drop=(r"\.block_sparse_moe\.router\.",),
)
