"""Every family of MoE models that can be merged, and those that cannot, with the reason."""

import difflib
from typing import Any

from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from tanbr.errors import CheckpointError
from tanbr.moe.families.bert import BERT, BertMoeForSequenceClassification
from tanbr.moe.families.decoders import DECODERS
from tanbr.moe.families.switch import SWITCH
from tanbr.moe.families.t5 import T5, T5MoeForConditionalGeneration
from tanbr.moe.family import Family, Settings

disable_progress_bar()  # our own commands show what takes long

FAMILIES: dict[str, Family] = {family.model_type: family for family in (BERT, T5, SWITCH, *DECODERS)}

CLASSES: dict[str, Any] = {  # models that transformers does not have
    model.__name__: model for model in (BertMoeForSequenceClassification, T5MoeForConditionalGeneration)
}


def family_of(config: dict[str, Any]) -> Family:
    """Find the family of a checkpoint by its configuration's model_type."""
    model_type = config["model_type"]
    if "quantization_config" in config:
        raise CheckpointError(f"a {model_type} checkpoint is quantised; dequantise it with transformers and save it")
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    near = difflib.get_close_matches(model_type, FAMILIES, n=1, cutoff=0.0)[0]
    known = ", ".join(sorted(FAMILIES))
    raise CheckpointError(
        f"{model_type!r} is no MoE family known here; the nearest supported is {near!r} (all: {known})"
    )


def carried_over(source: Settings, model_type: str) -> Settings:
    """Keep of a configuration what another type of model has too, and what the source's own type does not declare."""
    declared, known = (AutoConfig.for_model(name).to_dict().keys() for name in (source["model_type"], model_type))
    undeclared = {"head_dim"}  # which some types read and do not declare
    kept = {key: value for key, value in source.items() if key in known | undeclared or key not in declared}
    return kept | {"model_type": model_type}


def read_settings(config: dict[str, Any]) -> Settings:
    """Read a configuration as transformers does: old keys renamed, defaults filled in."""
    try:
        return dict(AutoConfig.for_model(**config).to_dict())
    except Exception as error:  # transformers raises whatever its checks meet
        reason = str(error).strip().splitlines()
        raise CheckpointError(f"config.json is no valid {config['model_type']} configuration: {reason[0]}") from None
