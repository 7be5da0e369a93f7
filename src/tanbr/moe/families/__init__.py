"""Every family of MoE models that can be merged, and those that cannot, with the reason."""

import difflib
from typing import Any

from tanbr.errors import CheckpointError
from tanbr.moe.families.bert import BERT
from tanbr.moe.family import Family

FAMILIES: dict[str, Family] = {family.model_type: family for family in (BERT,)}


def family_of(config: dict[str, Any]) -> Family:
    """Find the family of a checkpoint by its configuration's model_type."""
    model_type = config["model_type"]
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    near = difflib.get_close_matches(model_type, FAMILIES, n=1, cutoff=0.0)
    raise CheckpointError(f"{model_type!r} is no MoE family that can be merged; the nearest that can is {near[0]!r}")
