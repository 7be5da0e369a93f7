import json
import re
from pathlib import Path

import pytest

from tanbr.lab import demo
from tanbr.lab.demo import Demo
from tanbr.lab.settings import Config
from tanbr.merge import Moe


@pytest.fixture(scope="module")
def done(moe: Moe, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return demo.run(moe, out=tmp_path_factory.mktemp("demo"), config=Config(), slots=60, requests=32, alpha=0.1)


def test_the_bound_is_above_random_is_below_and_two_models_are_above_one(done: Demo) -> None:
    summary = done.result.summary(tail=30)
    assert summary["best per slot"]["tail_reward"] > summary["best fixed"]["tail_reward"]
    assert summary["tanbr"]["tail_reward"] > summary["random"]["tail_reward"]
    assert summary["average"]["merges"] == 1
    assert summary["tanbr"]["merges"] > 5
    assert summary["best fixed, 2 models"]["merges"] == 2
    for method in ("tanbr", "best fixed"):
        assert summary[f"{method}, 2 models"]["reward"] > summary[method]["reward"] + 0.03
    figures = json.loads(done.figures.read_text())
    assert (figures["command"], len(figures["slots"]["tanbr"])) == ("tanbr demo", 60)
    assert figures["methods"]["tanbr"]["reward"] == pytest.approx(done.result.rewards("tanbr").mean())
    assert re.fullmatch(r"\+[\d.]+ ± [\d.]+ points, in 1.6 MB instead of 1.1", done.facts["2 models above one"])


ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(900)
def test_the_headline_holds(moe: Moe, tmp_path: Path) -> None:
    """What the page shows of `tanbr demo`. Another CPU rounds otherwise, and the router then takes another way: both
    margins are draws with the printed standard error, so that they differ by less than four times its √2."""
    shown = json.loads((ROOT / "docs/results/demo/demo.json").read_text())["runs"][0]["facts"]
    printed, error = map(float, re.findall(r"[\d.]+", shown["tanbr above the best fixed blend"])[:2])
    full = demo.run(moe, out=tmp_path, config=Config())
    above, _ = full.result.paired("tanbr", "best fixed", tail=100)
    assert above > 0
    assert abs(100 * above - printed) < 4 * 2**0.5 * error
