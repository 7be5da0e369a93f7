import json

import numpy as np
import pytest

from golden.record import FOLDER, ROUTERS, record


@pytest.mark.parametrize("name", ROUTERS)
def test_run_is_the_recorded_one(name):
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    run = record(ROUTERS[name])
    assert np.allclose(run["blends"], recorded["blends"], atol=1e-6)
    assert run["depths"] == recorded["depths"]
    bounds, expected = (np.array(r["bounds"], dtype=float) for r in (run, recorded))
    assert np.allclose(bounds, expected, atol=1e-6, equal_nan=True)
