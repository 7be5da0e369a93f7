"""Merge methods by name: every module of this folder that defines one is found; nothing else needs to know of it.

A name may carry settings, `ties:density=0.3:scale=1.2`. A method from elsewhere is `package.module:Class`; files may
not name one, since an import runs code.
"""

import difflib
import pkgutil
from dataclasses import fields
from importlib import import_module

from pydantic import TypeAdapter, ValidationError

from tanbr.errors import ConfigError
from tanbr.merge.methods.method import Method
from tanbr.merge.sources.source import ExpertSource

__all__ = ["METHODS", "Method", "check_name", "choose"]


def _found() -> dict[str, type[Method]]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.name: kind for kind in kinds if issubclass(kind, Method) and hasattr(kind, "name")}


METHODS: dict[str, type[Method]] = dict(sorted(_found().items()))


def choose(text: str, experts: ExpertSource) -> Method:
    """Make the method that `text` names, with its settings, for a checkpoint's experts."""
    kind, settings = _read(text)
    try:
        chosen: Method = TypeAdapter(kind).validate_python({"experts": experts, **settings})
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"merge method {text!r}: {problem['loc'][0]}: {problem['msg']}") from None
    return chosen


def check_name(text: str) -> str:
    """Refuse the name of a method that does not exist, or a setting that it does not have."""
    _read(text)
    return text


def _read(text: str) -> tuple[type[Method], dict[str, str]]:
    parts = text.strip().split(":")
    settings = dict(part.split("=", maxsplit=1) for part in parts if "=" in part)
    name = ":".join(part for part in parts if "=" not in part)
    if len(settings) + name.count(":") + 1 != len(parts):
        raise ConfigError(f"merge method {text!r} must be a name, with settings as name:key=value:key=value")
    kind = _third_party(name) if ":" in name else METHODS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown merge method {name!r}; {hint}known: {', '.join(METHODS)}, or package.module:Class")
    known = [one.name for one in fields(kind)[1:]]  # after the experts
    odd = next((key for key in settings if key not in known), None)
    if odd is not None:
        raise ConfigError(f"merge method {text!r} has no setting {odd!r} (its settings: {', '.join(known) or 'none'})")
    return kind, settings


def _third_party(name: str) -> type[Method]:
    try:
        kind = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"merge method {name!r} cannot be imported ({error}); write package.module:Class") from None
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ConfigError(f"merge method {name!r} must be a class derived from tanbr.merge.methods.Method")
    return kind
