"""Switch Transformers: T5 with one expert per token, its output scaled by the router's probability.

T5 holds a merge once the mean of that probability is folded in. Tokens over an expert's capacity, which Switch drops,
are computed by the dense model.
"""

from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families.folds import mean_mass
from tanbr.moe.family import ExpertPattern, Family, Fold, Settings


def _probability(checkpoint: Checkpoint, _: Settings, site: str) -> Fold:
    router = f"{site}.mlp.router.classifier"
    mass = mean_mass(
        checkpoint, router=f"{router}.weight", bias=f"{router}.bias", norm=f"{site}.layer_norm.weight", top_k=1
    )
    return Fold(mass, "mean top-1 probability of the router, estimated on normal inputs")


SWITCH = Family(
    model_type="switch_transformers",
    dense="t5",
    prefix=("SwitchTransformers", "T5"),
    experts=(
        ExpertPattern("{site}.mlp.experts.expert_{k}.wi.weight", {"up": "{site}.DenseReluDense.wi.weight"}),
        ExpertPattern("{site}.mlp.experts.expert_{k}.wo.weight", {"down": "{site}.DenseReluDense.wo.weight"}),
    ),
    drop=(r"\.mlp\.router\.",),
    rename=((r"\.mlp\.", ".DenseReluDense."),),
    settings=lambda source: {"feed_forward_proj": source["dense_act_fn"]},
    width=("d_ff",),
    fold=_probability,
)
