from pathlib import Path

import numpy as np
import pytest

from moe.tiny import build
from serve.text_model import write_tokenizer
from tanbr.errors import CheckpointError, InputError
from tanbr.grouping.by_routing import by_routing, correlations, gate_profiles, loads
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.moe.gates import add_gates
from tanbr.router.groups import Groups

RNG = np.random.default_rng(0)
TEXTS = [" ".join(f"w{n}" for n in RNG.integers(0, 60, 10)) for _ in range(24)]


def test_experts_that_rise_and_fall_together_correlate_and_loads_are_mean_shares() -> None:
    profiles = np.zeros((2, 4, 3))
    profiles[:, :, 0] = profiles[:, :, 1] = [0.1, 0.4, 0.2, 0.3]
    profiles[:, :, 2] = 1 - 2 * profiles[:, :, 0]
    alike = correlations(profiles)
    np.testing.assert_allclose(alike, [[1, 1, -1], [1, 1, -1], [-1, -1, 1]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(loads(profiles), [0.25, 0.25, 0.5], rtol=0, atol=1e-15)
    unused = np.zeros((1, 2, 4))
    unused[:, :, 0] = 1.0
    assert loads(unused).tolist() == [1.0, 0.0125, 0.0125, 0.0125]
    assert np.isfinite(correlations(unused)).all()


def test_experts_that_the_gates_of_a_real_checkpoint_use_together_are_grouped(many: Moe) -> None:
    found = by_routing(many, TEXTS, into=8)
    planted = Groups.by_labels((np.arange(64) % 8).tolist())
    assert {frozenset(members) for members in found.groups.members} == set(map(frozenset, planted.members))
    assert found.groups.found_by == "routing"
    assert len(found.groups.loads) == 64
    assert len(set(found.groups.loads)) > 8
    profiles = gate_profiles(many, TEXTS[:8])
    assert profiles.shape == (2, 8, 64)
    np.testing.assert_allclose(profiles.sum(axis=2), 1, rtol=0, atol=64 * np.finfo(np.float32).eps)


def test_our_own_models_with_gates_say_what_they_choose(tmp_path: Path) -> None:
    model = build("bert_moe")
    add_gates(model, std=1.0)
    model.save_pretrained(tmp_path)
    profiles = gate_profiles(open_moe(write_tokenizer(tmp_path)), TEXTS[:8])
    assert profiles.shape[1:] == (8, 4)


def test_a_checkpoint_without_gates_and_too_few_texts_are_refused(many: Moe) -> None:
    with pytest.raises(CheckpointError, match="no gates of its own"):
        by_routing(open_moe(embedded.path()), TEXTS, into=4)
    with pytest.raises(InputError, match=r"8 texts or more \(got 2\)"):
        by_routing(many, TEXTS[:2], into=8)
