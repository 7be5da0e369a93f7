"""A Qwen-like checkpoint of 64 experts, merged and served: made-up weights, but the real way."""

from pathlib import Path

import numpy as np

from tanbr.lab.settings import parse
from tanbr.serve.build import build
from tanbr.serve.records import Feedback

CONFIG = parse(
    {"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always", "rewards": {"settle_slots": 0}}}
).serve


def test_sixty_four_experts_are_served_and_learned(qwen: Path, tmp_path: Path) -> None:
    live = build(qwen, config=CONFIG, state=tmp_path / "state")
    live.start()
    for reward in (0.2, 0.9, 0.3):
        done = live.generate(["w1 w2", "w9 w4 w4"], max_tokens=3).result(120)
        assert done.merge_version == live.state().merge_version
        assert live.feedback([Feedback(i, reward=reward) for i in done.request_ids]).accepted == 2
        live.end_slot()
    served = live.state().blend
    assert served.shape == (64,)
    live.stop()
    again = build(qwen, config=CONFIG, state=tmp_path / "state")
    np.testing.assert_array_equal(again.state().blend, served)
    again.stop()
