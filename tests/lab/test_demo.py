import json
import re
from pathlib import Path

import pytest

from tanbr.lab import demo
from tanbr.lab.settings import Config
from tanbr.merge import Moe


def test_the_bound_is_above_random_is_below_and_two_models_are_above_one(moe: Moe, tmp_path: Path) -> None:
    standings, facts = demo.run(moe, out=tmp_path, config=Config(), slots=60, requests=32, alpha=0.1)
    late = {name: standings.reward(name, after=30).mean for name in standings.methods}
    assert late["best-per-slot"] > late["best-fixed"]
    assert late["tanbr"] > late["random"]
    assert standings.merges("average") == [1]
    assert standings.merges("tanbr")[0] > 5
    assert standings.merges("best-fixed@2") == [2]
    for method in ("tanbr", "best-fixed"):
        assert standings.above(f"{method}@2", method).mean > 0.03
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["command"] == "tanbr demo"
    assert figures["methods"]["tanbr"]["reward"]["mean"] == pytest.approx(standings.reward("tanbr").mean)
    assert re.match(r"\+[\d.]+ ± [\d.]+ points, in 1.6 MB instead of 1.1", facts["2 models above one"])
