from pathlib import Path

import pytest

from lab.paper.few import setup
from tanbr.lab.paper import theorem1


def test_the_default_mode_regrets_less_than_chance_in_the_end(tmp_path: Path) -> None:
    found = {}
    for job in theorem1.jobs(setup(tmp_path)):
        if "K4-V8" in job.name:
            found[job.facts["router"]] = job.run(lambda *_: None)
    assert found["tanbr"]["late_regret"] < found["random"]["late_regret"]
    assert found["paper"]["depth"] <= found["paper"]["depth_bound"] + 1
    assert found["paper"]["leaves"] <= found["paper"]["leaves_bound"]


def test_the_printed_bound_grows_like_its_bare_t(tmp_path: Path) -> None:
    [job] = [job for job in theorem1.jobs(setup(tmp_path)) if job.name == "theorem1-paper-K4-V8-seed0"]
    assert job.run(lambda *_: None)["bound_exponent"] == pytest.approx(1.0, abs=1e-3)
