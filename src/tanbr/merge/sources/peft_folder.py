"""A PEFT folder with one LoRA adapter: adapter_config.json and adapter_model.safetensors, read with suspicion."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import TensorFile, TensorSpec, read_json
from tanbr.moe.family import UNMERGEABLE

SETTINGS, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
VARIANTS = (  # kinds of LoRA that do more than add products
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "arrow_config",
    "alora_invocation_tokens",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
)
STARTS = ("gaussian", "eva", "orthogonal")  # ways to start factors that leave the base as it is
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?")


@dataclass(frozen=True)
class Layer:
    """The factors of one module."""

    down: TensorSpec  # A (r, n)
    up: TensorSpec  # B (m, r)
    scale: float
    embedding: bool


@dataclass(frozen=True, eq=False)
class Adapter:
    """One LoRA adapter; its weights stay in their file."""

    settings_file: ClassVar[str] = SETTINGS

    path: Path
    settings: dict[str, Any]
    files: list[TensorFile]
    layers: dict[str, Layer]  # module → its factors
    whole: dict[str, TensorSpec]  # tensor of the model → what the adapter holds in its place
    base: str

    @property
    def fan_in_fan_out(self) -> bool:
        """Whether the base stores its matrices as (in, out)."""
        return self.settings.get("fan_in_fan_out") is True


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (folder / SETTINGS).exists()


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's settings and the header of its file."""
    settings = read_json(folder / SETTINGS)
    _check_kind(folder, settings)
    if not (folder / WEIGHTS).exists():
        if (folder / PICKLE).exists():
            raise CheckpointError(
                f"{folder} holds a pickle file ({PICKLE}), which can run code when opened; convert it where you trust "
                "it: PeftModel.from_pretrained(model, folder).save_pretrained(new_folder) writes safetensors"
            )
        raise CheckpointError(f"{folder} has no {WEIGHTS}; fetch the whole adapter again")
    file = TensorFile(folder / WEIGHTS, 0)
    factors: dict[str, dict[str, TensorSpec]] = {}
    whole: dict[str, TensorSpec] = {}
    embeddings: set[str] = set()
    for spec in file.specs:
        name = spec.name.removeprefix(PREFIX)
        found = FACTOR.fullmatch(name)
        if found:
            factors.setdefault(found["module"], {})[found["side"]] = spec
            embeddings |= {found["module"]} if found["embedding"] else set()
        elif "lora_" in name:
            raise CheckpointError(f"{folder} holds {spec.name}, a kind of LoRA that cannot be merged here (DoRA?)")
        else:
            whole[name.replace(".base_layer.", ".")] = spec
    layers = {
        module: _layer(folder, module, sides, settings, embedding=module in embeddings)
        for module, sides in factors.items()
    }
    if not layers:
        raise CheckpointError(f"{folder / WEIGHTS} holds no LoRA factors; fetch the adapter again")
    return Adapter(folder, settings, [file], layers, whole, str(settings.get("base_model_name_or_path") or ""))


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
            f"{folder} was started by {start}, which changes the base itself; convert it to a plain LoRA adapter with "
            "save_pretrained(…, path_initial_model_for_weight_conversion=…)"
        )


def _layer(
    folder: Path, module: str, sides: dict[str, TensorSpec], settings: dict[str, Any], *, embedding: bool
) -> Layer:
    down, up = sides.get("A"), sides.get("B")
    if down is None or up is None or len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
        shapes = [None if spec is None else spec.shape for spec in (down, up)]
        raise CheckpointError(f"{folder}: {module} must have two factors A (r, n) and B (m, r) (got {shapes})")
    if not (down.dtype.is_floating_point and up.dtype.is_floating_point) or {down.dtype, up.dtype} & UNMERGEABLE:
        raise CheckpointError(f"{folder}: the factors of {module} must be 16- or 32-bit floats (got {down.dtype})")
    rank = _own(folder, settings, "rank_pattern", module, settings.get("r"))
    alpha = _own(folder, settings, "alpha_pattern", module, settings.get("lora_alpha"))
    fits = type(rank) is int and 0 < rank == down.shape[0]
    if not fits or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(
            f"{folder}: {SETTINGS} gives {module} rank {rank} and alpha {alpha}, but its factors have rank "
            f"{down.shape[0]}; fetch the adapter again"
        )
    return Layer(down, up, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank), embedding)


def _own(folder: Path, settings: dict[str, Any], key: str, module: str, default: Any) -> Any:
    """Find a module's own value: the first pattern that its name ends in, or is, after a `^`.

    PEFT takes patterns as regular expressions; one of a stranger may never end, so that only names are taken here.
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
