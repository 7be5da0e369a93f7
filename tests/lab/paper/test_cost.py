import pytest

from tanbr.lab.paper.cost import BYTES, Cost, ModelSize, Speed
from tanbr.lab.paper.scale import scale
from tanbr.merge import Moe


def test_time_follows_from_work_and_speed() -> None:
    cost = Cost(flops=6e9, layers=1_000, seconds=1.0).times(2)
    assert Speed(flops=2e9, layer=1e-3).seconds(cost) == pytest.approx(6 + 2 + 2)


def test_jobs_one_after_the_other_share_their_memory_but_not_the_disk() -> None:
    both = Cost(memory=5, disk=1) + Cost(memory=3, disk=2)
    assert (both.memory, both.disk) == (5, 3)


def test_the_published_sizes_are_what_the_paper_says() -> None:
    assert scale("paper").t5.whole == pytest.approx(1.0e9, rel=0.05)
    assert scale("paper").t5.dense == pytest.approx(220e6, rel=0.05)


def test_a_checkpoints_parameters_are_counted_near_enough(moe: Moe) -> None:
    size = ModelSize.of(dict(moe.config))
    counted = sum(spec.numel for spec in moe.checkpoint.specs.values())
    assert size.whole == pytest.approx(counted, rel=0.1)


def test_more_experts_rows_and_steps_cost_more() -> None:
    size = ModelSize(64, 128, 2, 2, 8, 100)
    one = size.forward(rows=8, length=16)
    assert size.forward(rows=16, length=16).flops == pytest.approx(2 * one.flops)
    assert size.forward(rows=8, length=16, experts=3).flops > one.flops
    assert size.training(rows=8, length=16).flops > 2 * one.flops
    assert size.training(rows=8, length=16).memory > one.memory > BYTES * size.dense
