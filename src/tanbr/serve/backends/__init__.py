"""What runs a dense model: one file a backend, found by itself."""

import pkgutil
from importlib import import_module

from tanbr.serve.backends.backend import Backend, Builder, Size

__all__ = ["BACKENDS", "Backend", "Builder", "Size"]


def _found() -> dict[str, Builder]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    kinds = [kind for module in modules for kind in vars(module).values() if hasattr(kind, "build")]
    return {kind.name: kind.build for kind in kinds}


BACKENDS: dict[str, Builder] = dict(sorted(_found().items()))
