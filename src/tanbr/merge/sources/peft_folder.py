"""A PEFT folder with one LoRA adapter: adapter_config.json and adapter_model.safetensors, read with suspicion."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import TensorFile, TensorSpec, read_json
from tanbr.moe.family import MERGEABLE

SETTINGS, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
VARIANTS = (  # kinds of LoRA that do more than add products
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "arrow_config", "alora_invocation_tokens",
    "layer_replication", "trainable_token_indices", "target_parameters",
)  # fmt: skip
STARTS = ("gaussian", "eva", "orthogonal")  # ways to start factors that leave the base as it is
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?")


@dataclass(frozen=True)
class LowRank:
    """What one adapter adds to one matrix W (m, n): scale · B A, or its transpose where W is stored so."""

    down: TensorSpec  # A (r, n)
    up: TensorSpec  # B (m, r)
    scale: float
    transposed: bool
    embedding: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix that it is added to."""
        shape = self.up.shape[0], self.down.shape[1]
        return shape[::-1] if self.transposed else shape


@dataclass(frozen=True, eq=False)
class Adapter:
    """One LoRA adapter; its weights stay in their file, whose tensors are called `folder:name`."""

    settings_file: ClassVar[str] = SETTINGS

    path: Path
    settings: dict[str, Any]
    files: list[TensorFile]
    factors: dict[str, LowRank]  # tensor of the model → what is added to it
    whole: dict[str, TensorSpec]  # tensor of the model → what the adapter holds in its place

    @property
    def base(self) -> str:
        """What it was trained on, as it says itself."""
        return str(self.settings.get("base_model_name_or_path") or "")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (folder / SETTINGS).exists()


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's settings and the header of its file."""
    settings = read_json(folder / SETTINGS)
    _check_kind(folder, settings)
    if (folder / PICKLE).exists() and not (folder / WEIGHTS).exists():
        raise CheckpointError(
            f"{folder} holds a pickle file ({PICKLE}), which can run code when opened; convert it where you trust "
            "it: PeftModel.from_pretrained(model, folder).save_pretrained(new_folder) writes safetensors"
        )
    file = TensorFile(folder / WEIGHTS, 0)
    sides: dict[tuple[str, bool], dict[str, TensorSpec]] = {}
    whole: dict[str, TensorSpec] = {}
    for spec in file.specs:
        name = spec.name.removeprefix(PREFIX)
        own = replace(spec, name=f"{folder}:{spec.name}")
        found = FACTOR.fullmatch(name)
        if found:
            sides.setdefault((found["module"], bool(found["embedding"])), {})[found["side"]] = own
        elif "lora_" in name:
            raise CheckpointError(f"{folder} holds {spec.name}, a kind of LoRA that cannot be merged here (DoRA?)")
        else:
            whole[name.replace(".base_layer.", ".")] = own
    if not sides:
        raise CheckpointError(f"{folder / WEIGHTS} holds no LoRA factors; fetch the adapter again")
    factors = {
        f"{module}.weight": _low_rank(folder, module, both, settings, embedding=embedding)
        for (module, embedding), both in sides.items()
    }
    return Adapter(folder, settings, [file], factors, whole)


def _check_kind(folder: Path, settings: dict[str, Any]) -> None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{folder} is a PEFT adapter of type {kind}; only LORA adapters can be blended")
    for key in VARIANTS:
        if settings.get(key):
            raise CheckpointError(f"{folder} is a LoRA adapter with {key}, which no sum of low-rank products holds")
    saved = settings.get("modules_to_save") or []
    if not (isinstance(saved, list) and all(isinstance(name, str) for name in saved)):
        raise CheckpointError(f"{folder / SETTINGS}: modules_to_save must be a list of names (got {saved!r})")
    start = settings.get("init_lora_weights", True)
    if isinstance(start, str) and start not in STARTS:
        raise CheckpointError(
            f"{folder} was started by {start}, which changes the base; make it a plain LoRA adapter with "
            "save_pretrained(…, path_initial_model_for_weight_conversion=…)"
        )


def _low_rank(
    folder: Path, module: str, sides: Mapping[str, TensorSpec], settings: dict[str, Any], *, embedding: bool
) -> LowRank:
    down, up = sides.get("A"), sides.get("B")
    if down is None or up is None or len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
        shapes = [None if spec is None else spec.shape for spec in (down, up)]
        raise CheckpointError(f"{folder}: {module} must have two factors A (r, n) and B (m, r) (got {shapes})")
    if not {down.dtype, up.dtype} <= MERGEABLE:
        raise CheckpointError(f"{folder}: the factors of {module} must be 16- or 32-bit floats (got {down.dtype})")
    rank = _own(folder, settings, "rank_pattern", module, settings.get("r"))
    alpha = _own(folder, settings, "alpha_pattern", module, settings.get("lora_alpha"))
    if (
        type(rank) is not int
        or not 0 < rank == down.shape[0]
        or type(alpha) not in (int, float)
        or not math.isfinite(alpha)
    ):
        raise CheckpointError(
            f"{folder}: {SETTINGS} gives {module} rank {rank} and alpha {alpha}, but its factors have rank "
            f"{down.shape[0]}; fetch the adapter again"
        )
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    return LowRank(down, up, scale, settings.get("fan_in_fan_out") is True or embedding, embedding)


def _own(folder: Path, settings: dict[str, Any], key: str, module: str, default: Any) -> Any:
    """Find a module's own value: the first pattern that its name ends in, or is, after a `^`.

    PEFT takes regular expressions, of which a stranger's may never end: only names are taken here.
    """
    patterns = settings.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{folder}: {key} must be a JSON object of modules and numbers (got {patterns!r})")
    for pattern in patterns:
        name = pattern.removeprefix("^").replace("\\.", ".")
        if not re.fullmatch(r"[\w.-]+", name):
            raise CheckpointError(f"{folder}: {key} must name modules (got {pattern!r}); write their names out")
        if module == name or (module.endswith(f".{name}") and not pattern.startswith("^")):
            return patterns[pattern]
    return default
