import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serve.serving import answer, service
from tanbr.errors import DataError
from tanbr.lab.rivals import FixedBlend
from tanbr.router import Tanbr
from tanbr.serve.replay import Log, read_log, replay
from tanbr.serve.store import FILE
from tanbr.types import FloatArray

K = V = 3
BEST = np.array([0.8, 0.1, 0.1])


def truth(blends: FloatArray) -> FloatArray:
    """The nearer to BEST the better, whatever the task."""
    return np.tile(0.9 - ((blends - BEST) ** 2).sum(axis=1, keepdims=True) / 2, (1, V))


def log_of(blends: FloatArray, *, seed: int = 0) -> Log:
    rng = np.random.default_rng(seed)
    counts = np.full((len(blends), V), 20.0)
    noise = rng.normal(size=(len(blends), V)) * 0.05
    return Log(np.full((len(blends), V), 1 / V), blends, np.clip(truth(blends) + noise, 0, 1), counts)


def test_a_log_that_tried_much_orders_routers_and_says_so() -> None:
    log = log_of(np.random.default_rng(1).dirichlet(np.ones(K), 80))
    good, bad = FixedBlend(K, V, blend=BEST), FixedBlend(K, V, blend=np.array([0.0, 0.5, 0.5]))
    done = replay(log, {"good": good, "bad": bad, "tanbr": Tanbr(K, V)})
    served, best, worst, learned = done.routers
    assert best.reward == pytest.approx(0.9, abs=0.05)
    assert worst.reward < served.reward < best.reward
    assert served.reward == pytest.approx(done.logged_reward, abs=0.02)
    assert learned.reward > served.reward
    assert done.held_out < done.held_out_by_mean / 2
    assert served.supported
    assert best.supported


def test_a_log_of_one_corner_vouches_for_nothing_elsewhere() -> None:
    rng = np.random.default_rng(2)
    corner = np.array([0.05, 0.05, 0.9]) + 0.02 * rng.dirichlet(np.ones(K), 40)
    done = replay(log_of(corner / corner.sum(axis=1, keepdims=True)), {"far": FixedBlend(K, V, blend=BEST)})
    far = done.routers[1]
    assert (far.coverage, far.supported) == (0.0, False)
    assert far.deviation > 2 * done.routers[0].deviation


def test_a_servers_own_state_is_a_log(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught)
    live.start()
    for _ in range(12):
        answer(live, 4)
        live.end_slot()
    log = read_log(tmp_path)  # while it runs
    live.stop()
    assert len(log) == 11
    assert log.rewards[:, 6].tolist() == [0.5] * 11
    with pytest.raises(DataError, match="no log"):
        read_log(tmp_path / "nowhere")
    for column, value in (("blend", "[NaN]"), ("counts", "[Infinity]"), ("reward", "[7]"), ("mix", "[0.5, 0.5]")):
        damaged = tmp_path / f"{column}.sqlite"
        shutil.copy(tmp_path / FILE, damaged)
        with closing(sqlite3.connect(damaged)) as connection, connection:
            connection.execute(f"UPDATE {'slots' if column == 'mix' else 'models'} SET {column} = '{value}'")
        with pytest.raises(DataError, match="holds a damaged slot"):
            read_log(damaged)


def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="holds no log of a server"):
        read_log(tmp_path / "pipe")
