"""Experts that belong together are found, by weights, by routing and by reward."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moe.tiny import build
from serve.text_model import write_tokenizer
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.gates import add_gates
from tanbr.lab.grouping import (
    Grouping,
    by_reward,
    by_routing,
    by_weights,
    clustered,
    correlations,
    distances,
    draw,
    effects,
    gate_profiles,
    loads,
)
from tanbr.merge import Moe, inspect
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.router.groups import Groups

RNG = np.random.default_rng(0)
TEXTS = [" ".join(f"w{n}" for n in RNG.integers(0, 60, 10)) for _ in range(24)]
PLANTED = Groups.by_labels((np.arange(64) % 8).tolist())


@pytest.fixture(scope="module")
def many(qwen: Path) -> Moe:
    """The experts of a Qwen3-MoE, 64 in eight families."""
    return open_moe(qwen)


def apart(points):
    return ((points[:, None] - points[None]) ** 2).sum(axis=2)


def test_planted_families_are_found_in_the_order_of_their_first_experts() -> None:
    rng = np.random.default_rng(0)
    family = rng.permutation(np.arange(48) % 6)
    centres = 4.0 * np.eye(6)
    points = centres[family] + 0.1 * rng.normal(size=(48, 6))
    groups = clustered(apart(points), into=6)
    for members in groups.members:
        assert len({family[k] for k in members}) == 1
    firsts = [min(members) for members in groups.members]
    assert firsts == sorted(firsts)
    assert clustered(apart(points), into=6) == groups


def test_experts_that_are_all_alike_still_make_as_many_groups() -> None:
    groups = clustered(np.zeros((9, 9)), into=4)
    assert len(groups) == 4
    assert groups.experts == 9


def test_a_chain_of_many_experts_is_written_and_read(tmp_path: Path) -> None:
    points = (3.0 ** np.arange(200))[:, None] ** 0.2
    groups = clustered(apart(points), into=2)
    groups.save(tmp_path / "groups.json")
    assert Groups.load(tmp_path / "groups.json") == groups


@pytest.mark.parametrize("into", [0, 1, 10, -3])
def test_a_number_of_groups_that_cannot_be_is_refused(into: int) -> None:
    with pytest.raises(InputError, match="9 experts make 2 to 9 groups"):
        clustered(np.zeros((9, 9)), into=into)


def test_distances_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        clustered(np.full((4, 4), np.nan), into=2)


def test_a_grouping_says_how_alike_its_groups_are_and_draws_them(tmp_path: Path) -> None:
    similarity = np.array([[1, 0.8, 0.1], [0.8, 1, 0.3], [0.1, 0.3, 1]])
    found = Grouping(Groups.of([[0, 1], [2]], found_by="weights"), similarity)
    assert found.within == pytest.approx(0.8, abs=1e-15)
    assert found.between == pytest.approx(0.2, abs=1e-15)
    assert np.isnan(Grouping(Groups.by_labels(range(3)), similarity).within)
    draw(found, tmp_path / "new" / "groups.png")
    assert (tmp_path / "new" / "groups.png").stat().st_size > 1000


def test_planted_families_of_a_real_checkpoint_are_found(many: Moe) -> None:
    seen: list[int] = []
    found = by_weights(many, into=8, progress=lambda done, _: seen.append(done))
    assert {frozenset(members) for members in found.groups.members} == set(map(frozenset, PLANTED.members))
    assert found.groups.found_by == "weights"
    assert found.groups.model_sha256 == many.fingerprint
    assert found.within > 0.7
    assert abs(found.between) < 0.3
    assert seen[-1] == len(many.sites)
    assert by_weights(many, into=8).groups == found.groups


def test_experts_are_read_block_by_block(many: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = distances(many)[0]
    sizes: list[int] = []
    read = type(many.source).rows

    def counted(experts, piece, chosen, part=slice(None)):
        rows = read(experts, piece, chosen, part)
        sizes.append(rows.numel())
        return rows

    monkeypatch.setattr(type(many.source), "rows", counted)
    monkeypatch.setattr(inspect, "BLOCK", 64 * 100)
    error = 4 * 3 * 32 * 32 * np.finfo(np.float32).eps  # float32 sums of so many products, in another order
    np.testing.assert_allclose(distances(many)[0], whole, rtol=error)
    assert max(sizes) <= 64 * 100


def test_the_gram_matrix_is_that_of_the_differences_from_the_mean(many: Moe) -> None:
    site = many.sites[0]
    rows = []
    for k in range(64):
        parts = [part for part in site.parts if part.role not in ("router", "router_bias")]
        views = [many.checkpoint.blocks([part.blocks[k]], torch.Size(part.shape).numel())[0] for part in parts]
        rows.append(torch.cat(views).double())
    centred = torch.stack(rows) - torch.stack(rows).mean(dim=0)
    expected = (centred @ centred.T).numpy()
    bound = np.finfo(np.float32).eps * centred.shape[1] * 2 * float(torch.stack(rows).abs().max()) ** 2
    np.testing.assert_allclose(inspect.expert_gram(many, site, centred=True), expected, rtol=0, atol=bound)


def test_more_groups_than_experts_are_refused_before_anything_is_read(many: Moe) -> None:
    with pytest.raises(InputError, match="64 experts make 2 to 64 groups"):
        by_weights(many, into=65)


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
    assert {frozenset(members) for members in found.groups.members} == set(map(frozenset, PLANTED.members))
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


def planted(*, experts=24, families=4, tasks=5, seed=0):
    rng = np.random.default_rng(seed)
    family = rng.permutation(np.arange(experts) % families)
    of_family = rng.uniform(0.2, 0.8, (families, tasks))
    return family, np.clip(of_family[family] + 0.02 * rng.normal(size=(experts, tasks)), 0, 1)


def families_of(groups: Groups, family):
    return all(len({family[k] for k in members}) == 1 for members in groups.members)


def test_experts_that_earn_alike_alone_are_grouped() -> None:
    family, earned = planted()
    found = by_reward(np.eye(24), earned, np.full(earned.shape, 60.0), into=4, model_sha256="abc")
    assert families_of(found.groups, family)
    assert found.groups.found_by == "reward"
    assert found.groups.model_sha256 == "abc"
    assert found.within > 0.95 > found.between
    np.testing.assert_allclose(effects(np.eye(24), earned), earned, rtol=0, atol=1e-3)


def test_mixed_blends_with_unseen_tasks_do_as_well() -> None:
    family, earned = planted()
    rng = np.random.default_rng(1)
    blends = rng.dirichlet(np.full(24, 0.2), 400)
    rewards = np.clip(blends @ earned + 0.01 * rng.normal(size=(400, 5)), 0, 1)
    rewards[rng.random(rewards.shape) < 0.3] = np.nan
    assert families_of(by_reward(blends, rewards, into=4).groups, family)


def test_an_expert_that_no_reward_speaks_for_is_refused() -> None:
    rewards = np.full((3, 2), 0.5)
    with pytest.raises(InputError, match="none with expert 3 for task 0"):
        by_reward(np.eye(4)[:3], rewards, into=2)
    rewards[1, 1] = np.nan
    with pytest.raises(InputError, match="none with expert 1 for task 1"):
        by_reward(np.eye(3), rewards, into=2)


@pytest.mark.parametrize("rewards", [np.full((2, 2), 0.5), np.full((3, 2), 1.5), np.zeros((0, 2))])
def test_tables_that_do_not_fit_are_refused(rewards) -> None:
    with pytest.raises(InputError):
        by_reward(np.eye(3), rewards, into=2)
