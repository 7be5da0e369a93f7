"""A file that lists experts, as TOML or YAML: ours, or the `models:` list of a mergekit configuration.

    base = "bert/"
    method = "average"            # how blends are merged
    blend_only = "all"            # or "ffn"

    [[experts]]
    path = "sst2/"                # a fine-tuned checkpoint or a LoRA adapter; beside this file, or a hub id
    task = "sentiment"            # what it was trained for
    labels = ["bad", "good"]      # of its head, where it does not name them itself
    weight = 0.5                  # in the blend that the file asks for

`experts = ["sst2/", "mnli/"]` is enough where nothing is to be said of them.

Of mergekit's configurations only merges of whole models are understood. `dtype` and what concerns tokenizers is left
aside: a merge has its experts' type and its base's tokenizer. Whatever else would change the result and has no
counterpart here is refused by name.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from pydantic import Field

from tanbr.config import Section, read
from tanbr.errors import ConfigError
from tanbr.merge.sources.over_base import BlendOnly

ENDINGS = (".toml", ".yaml", ".yml")
METHODS = {  # mergekit's name → ours
    "linear": "average",
    "task_arithmetic": "task-arithmetic",
    "ties": "ties",
    "dare_linear": "dare",
    "slerp": "slerp",
}
UNNORMALISED = {"task_arithmetic", "dare_linear"}  # methods whose weights add up to whatever they add up to
SETTINGS = {  # what parameters a method may have beside weights
    "linear": {"normalize"},
    "task_arithmetic": {"normalize", "lambda"},
    "ties": {"normalize", "lambda", "density", "int8_mask"},
    "dare_linear": {"normalize", "lambda", "density", "int8_mask"},
    "slerp": {"t"},
}
ASIDE = {"dtype", "out_dtype", "tokenizer", "tokenizer_source", "chat_template", "name"}
KNOWN = {"models", "merge_method", "base_model", "parameters"} | ASIDE


class ListedExpert(Section):
    """One expert."""

    path: str
    """Folder of a fine-tuned checkpoint or of a LoRA adapter, or a model id of the hub."""
    task: str = ""
    """The task that it was trained for."""
    labels: tuple[str, ...] = ()
    """What the columns of its head are called, in their order."""
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Its weight in the blend that the file asks for."""


class ExpertList(Section):
    """Experts over one base."""

    base: str
    """Folder of the dense model that the experts came from, or a model id of the hub."""
    experts: tuple[ListedExpert, ...] = Field(min_length=2)
    """The experts, in the order of a blend's weights."""
    blend_only: BlendOnly = "all"
    """Blend whatever differs, or FFNs alone."""
    method: str = "average"
    """How blends are merged."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The experts' tasks (K,); none if the file names none."""
        return tuple(expert.task for expert in self.experts) if self.experts[0].task else ()

    @property
    def weights(self) -> tuple[float, ...]:
        """The blend that the file asks for (K,), which sums to 1; none if it names no weights."""
        total = sum(expert.weight or 0.0 for expert in self.experts)
        return tuple((expert.weight or 0.0) / total for expert in self.experts) if total > 0 else ()


def is_list(path: str | Path) -> bool:
    """Whether a path names a file that lists experts, rather than a folder or an id of the hub."""
    return str(path).endswith(ENDINGS) and not Path(path).is_dir()


def read_list(path: str | Path) -> ExpertList:
    """Read a list of experts; anything wrong in it is one `ConfigError`."""
    values = _values(Path(path))
    if "models" in values or "merge_method" in values or "slices" in values:
        values = from_mergekit(values, source=str(path))
    listed = values.get("experts")
    if isinstance(listed, list):
        values = values | {"experts": [{"path": one} if isinstance(one, str) else one for one in listed]}
    found = read(ExpertList, values, source=str(path))
    tasks = [expert.task for expert in found.experts]
    if any(tasks) and (not all(tasks) or len(set(tasks)) < len(tasks)):
        raise ConfigError(f"{path}: name the task of every expert or of none, and each but once (got {tasks})")
    return found.model_copy(
        update={
            "base": _beside(path, found.base),
            "experts": tuple(
                expert.model_copy(update={"path": _beside(path, expert.path)}) for expert in found.experts
            ),
        }
    )


def _values(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read the list of experts {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        kind = "TOML" if path.suffix == ".toml" else "YAML"
        raise ConfigError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply; list the experts one below the other") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must name a base and list experts (docs/experts.md shows how)")
    return {str(key): value for key, value in values.items()}


def _beside(file: str | Path, place: str) -> str:
    """Find a folder that is named relative to the file; what is not there is taken as it is."""
    beside = Path(file).parent / Path(place).expanduser()
    return str(beside) if beside.exists() else place


def from_mergekit(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Turn mergekit's configuration into the values of an `ExpertList`."""
    odd = next((key for key in values if key not in KNOWN), None)
    if odd is not None:
        raise ConfigError(f"{source}: mergekit's {odd!r} has no counterpart here; list whole models under `models:`")
    method = values.get("merge_method")
    if method not in METHODS:
        raise ConfigError(f"{source}: merge_method must be one of {', '.join(METHODS)} (got {method!r})")
    models = values.get("models")
    if not isinstance(models, Sequence) or not all(isinstance(one, Mapping) and "model" in one for one in models):
        raise ConfigError(f"{source}: models must be a list of entries with `model: FOLDER`")
    base = values.get("base_model")
    every = _mapping(values.get("parameters"), source)
    _check(every, SETTINGS[method] | {"weight"}, source)
    experts: list[dict[str, Any]] = []
    densities: list[float] = []
    for entry in models:
        path, own = str(entry["model"]), _mapping(entry.get("parameters"), source)
        if path == base and method not in ("slerp", "linear"):
            continue  # the base stands in the list too; it differs from itself in nothing
        if "+" in path:  # base+adapter
            base, path = _one_base(base, *path.split("+", maxsplit=1), source=source)
        _check(own, {"weight"} | (SETTINGS[method] & {"density"}), f"{source}: {path}")
        weight = own.get("weight", every.get("weight", 1.0))
        experts.append({"path": path, "weight": _number(weight, f"{source}: weight of {path}")})
        if "density" in own:
            densities.append(_number(own["density"], f"{source}: density of {path}"))
    if not experts:
        raise ConfigError(f"{source} lists no models beside its base")
    if method == "slerp":
        _interpolate(experts, every, base, source)
    settings = _settings(method, every, densities, sum(one["weight"] for one in experts), source)
    return {
        "base": experts[0]["path"] if base is None else str(base),
        "experts": experts,
        "method": ":".join([METHODS[method], *settings]),
    }


def _settings(method: str, every: Mapping[str, Any], densities: list[float], total: float, source: str) -> list[str]:
    settings = []
    if "density" in SETTINGS[method]:
        densities = densities or [_number(every.get("density", 1.0), f"{source}: density")]
        if len(set(densities)) > 1:
            raise ConfigError(f"{source}: all models must have one density (got {densities}); give it once")
        settings.append(f"density={densities[0]}")
    normalised = bool(every.get("normalize", method not in UNNORMALISED))
    if method == "ties":
        settings.append(f"normalise={str(normalised).lower()}")
    if method == "linear" and not normalised:
        raise ConfigError(f"{source}: a blend's weights sum to 1; leave `normalize: false` out")
    if "lambda" in SETTINGS[method]:
        scale = _number(every.get("lambda", 1.0), f"{source}: lambda")
        settings.append(f"scale={scale if normalised else scale * total}")
    return settings


def _interpolate(experts: list[dict[str, Any]], every: Mapping[str, Any], base: Any, source: str) -> None:
    """Turn slerp's t, the way from the base to the other model, into weights."""
    if len(experts) != 2 or base not in (None, experts[0]["path"], experts[1]["path"]):
        raise ConfigError(f"{source}: slerp is between two models, one of which is base_model")
    t = _number(every.get("t", 0.5), f"{source}: t")
    for one in experts:
        one["weight"] = 1 - t if one["path"] == (base or experts[0]["path"]) else t


def _one_base(base: Any, own: str, adapter: str, *, source: str) -> tuple[str, str]:
    if base not in (None, own):
        raise ConfigError(f"{source}: all experts must have one base (got {base} and {own})")
    return own, adapter


def _mapping(value: Any, source: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{source}: parameters must be names with values (got {value!r})")
    return value or {}


def _check(given: Mapping[str, Any], known: set[str], where: str) -> None:
    odd = next((key for key in given if key not in known), None)
    if odd is not None:
        raise ConfigError(f"{where}: the parameter {odd!r} has no counterpart here (known: {', '.join(sorted(known))})")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what} must be one number for the whole model (got {value!r})")
    return float(value)
