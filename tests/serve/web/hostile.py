"""benchmarks/hostile.py as a module: its requests, in small numbers, are tests here."""

import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(_FOLDER))  # for the package `serving` beside it
_SPEC = importlib.util.spec_from_file_location("tanbr_benchmarks_hostile", _FOLDER / "hostile.py")
assert _SPEC
assert _SPEC.loader
hostile = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = hostile
_SPEC.loader.exec_module(hostile)
