"""A Qwen-like checkpoint of 64 experts, grouped, merged and served: made-up weights, but the real way."""

from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import DataError, StateError
from tanbr.lab.grouping import by_weights
from tanbr.lab.settings import parse
from tanbr.merge import open as open_moe
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.groups import Groups
from tanbr.serve.build import build
from tanbr.serve.records import Feedback
from tanbr.serve.service import Service

FAMILIES = Groups.by_labels((np.arange(64) % 8).tolist())
CONFIG = parse(
    {"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always", "rewards": {"settle_slots": 0}}}
).serve
ROUTER = RouterConfig.model_validate({"default": {"baseline": "none"}})


def serve(model: Path, state: Path, groups: Path | None) -> Service:
    return build(model, config=CONFIG, router=ROUTER, state=state, groups=groups)


def test_sixty_four_experts_are_served_as_eight_groups(qwen: Path, tmp_path: Path) -> None:
    moe = open_moe(qwen)
    found = by_weights(moe, into=8).groups
    found.save(tmp_path / "groups.json")
    live = serve(qwen, tmp_path / "state", tmp_path / "groups.json")
    assert len(live.info.tasks) == 8  # as many latent tasks as groups, not as experts
    live.start()
    served = [live.state().blend]
    for reward in (0.2, 0.9, 0.3):
        done = live.generate(["w1 w2", "w9 w4 w4"], max_tokens=3).result(120)
        assert done.merge_version == live.state().merge_version
        assert live.feedback([Feedback(i, reward=reward) for i in done.request_ids]).accepted == 2
        live.end_slot()
        served.append(live.state().blend)
    for blend in served:  # experts of one family always weigh the same
        np.testing.assert_allclose(blend.reshape(8, 8), np.tile(blend[:8], (8, 1)), rtol=0, atol=1e-12)
    assert len({blend.tobytes() for blend in served}) > 1
    live.stop()

    again = serve(qwen, tmp_path / "state", tmp_path / "groups.json")
    assert isinstance(again.learner.router, Tanbr)
    assert again.learner.router.groups == found
    np.testing.assert_array_equal(again.state().blend, served[-1])
    again.stop()
    Groups.by_labels((np.arange(64) // 8).tolist()).save(tmp_path / "other.json")
    for other in (tmp_path / "other.json", None):
        with pytest.raises(StateError, match=r"was made for (groups|tasks) .* --adopt"):
            serve(qwen, tmp_path / "state", other)


def test_a_merge_of_a_family_is_nearer_to_its_experts_than_an_even_one(qwen: Path) -> None:
    moe = open_moe(qwen)
    target = next(name for name, _ in moe.tensors(changing=True))
    far = {}
    for name, blend in {"family": FAMILIES.expand(np.eye(8)[3]), "even": np.full(64, 1 / 64)}.items():
        merged, expert = dict(moe.tensors(blend, changing=True)), dict(moe.tensors(np.eye(64)[11], changing=True))
        far[name] = float((merged[target] - expert[target]).norm())
    assert far["family"] < 0.5 * far["even"]


def test_groups_of_another_checkpoint_are_refused(qwen: Path, tmp_path: Path) -> None:
    Groups.of([[0, 1], [2, 3]]).save(tmp_path / "few.json")
    with pytest.raises(DataError, match="4 experts, the checkpoint 64"):
        serve(qwen, tmp_path / "state", tmp_path / "few.json")
    Groups(FAMILIES.members, model_sha256="0" * 64).save(tmp_path / "foreign.json")
    with pytest.raises(DataError, match="other weights"):
        serve(qwen, tmp_path / "state", tmp_path / "foreign.json")
    assert not (tmp_path / "state").exists()
