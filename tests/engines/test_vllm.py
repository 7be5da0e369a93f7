import json
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from engines.fake_engine import MODEL, FakeVllm
from engines.record import FILE, answered, exchanges
from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Merge
from tanbr.engines.vllm import CHANGING, VllmWhole
from tanbr.merge import Moe

RECORDED: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def invented(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Where one value holds what the other has not, or of another type; numbers are numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        new = [f"{where}.{name}" for name in ours.keys() - theirs.keys()]
        return new + [
            one for name in ours.keys() & theirs.keys() for one in invented(ours[name], theirs[name], f"{where}.{name}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        return [one for mine in ours[:1] for one in invented(mine, theirs[0] if theirs else None, f"{where}[]")]
    kinds = [
        int if isinstance(value, bool) else float if isinstance(value, int | float) else type(value)
        for value in (ours, theirs)
    ]
    return [] if kinds[0] is kinds[1] else [f"{where}: {ours!r}, not {theirs!r}"]


def test_the_fake_engine_says_nothing_that_a_real_one_does_not(vllm: FakeVllm, dense: Path) -> None:
    asked = exchanges(MODEL, str(dense))
    assert [(one["method"], one["path"]) for one in RECORDED] == [(method, path) for method, path, _ in asked]
    with httpx2.Client(base_url=vllm.url) as http:
        for (method, path, body), real in zip(asked, RECORDED, strict=True):
            ours = answered(http, method, path, body)
            assert ours["status"] == real["status"], path
            assert invented(ours, {name: real[name] for name in ours}) == [], path


def test_weights_have_no_version_while_they_change(vllm: FakeVllm, mixtral: Moe, dense: Path) -> None:
    seen: list[tuple[str, bool]] = []
    load = vllm.load

    def watched(folder: str) -> None:
        seen.append((vllm.label, vllm.paused))
        load(folder)

    vllm.load = watched  # type: ignore[method-assign]
    one, two = (Merge(name, np.zeros(4), dense) for name in ("one", "two"))
    with closing(VllmWhole(mixtral, vllm.url)) as engine:
        engine.call(engine.load(one))
        assert seen == [(CHANGING, True)]
        assert (engine.call(engine.held()), vllm.paused) == (["one"], False)
        vllm.refuses = "no"
        with pytest.raises(EngineLost, match="500: no"):
            engine.call(engine.load(two))
        assert (engine.call(engine.held()), vllm.paused) == ([CHANGING], False)
        vllm.refuses, vllm.busy = "", True
        with pytest.raises(EngineRefused, match="did not forget"):
            engine.call(engine.load(two))
        assert (engine.call(engine.held()), vllm.paused) == ([CHANGING], False)
