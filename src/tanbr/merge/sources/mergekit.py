"""What a mergekit configuration says, as a list of experts: its `models:`, their weights, and the method.

Only merges of whole models are understood. `dtype` and what concerns tokenizers is left aside: a merge has its experts'
type and its base's tokenizer. Whatever else would change the result and has no counterpart here is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tanbr.errors import ConfigError

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
