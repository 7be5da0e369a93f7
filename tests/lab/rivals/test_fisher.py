"""Fisher averages: by hand for one layer, then on whole models of both families."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.rivals.probed import FAMILIES, saved, some_probes
from tanbr.errors import DataError
from tanbr.lab.rivals.fisher import FisherMean, diagonal, fisher
from tanbr.merge import Moe
from tanbr.merge.measure import experts_alone, linears

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Moe:
    return saved(tmp_path_factory.mktemp("moe"), request.param)


def test_fisher_by_hand() -> None:
    mean = FisherMean()
    mean.add(torch.tensor([0.0, 10.0]), torch.tensor([3.0, 1.0]))  # means of 2: shares 1.5 and 0.5
    mean.add(torch.tensor([4.0, 20.0]), torch.tensor([50.0, 150.0]))  # means of 100: shares 0.5 and 1.5
    torch.testing.assert_close(mean.value, torch.tensor([1.0, 17.5]), rtol=0, atol=1e-4)


@given(seeds)
@few
def test_equal_information_is_the_average(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights, information = torch.randn(3, 4, 5, generator=rng), torch.rand(4, 5, generator=rng)
    mean = FisherMean()
    for weight in weights:
        mean.add(weight, information)
    torch.testing.assert_close(mean.value, weights.mean(dim=0), rtol=1e-4, atol=1e-5)


@given(seeds, st.integers(1, 3))
@few
def test_one_expert_or_equal_ones_come_back(seed: int, experts: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weight, mean = torch.randn(4, 5, generator=rng), FisherMean()
    for _ in range(experts):
        mean.add(weight, torch.rand(4, 5, generator=rng))
    torch.testing.assert_close(mean.value, weight, rtol=1e-4, atol=1e-5)


def test_what_no_expert_has_seen_is_averaged() -> None:
    mean, nothing = FisherMean(), FisherMean()
    for value in (1.0, 3.0):
        mean.add(torch.full((2,), value), torch.tensor([value, 0.0]))
        nothing.add(torch.full((2,), value), torch.zeros(2))
    assert mean.value[1] == pytest.approx(2.0)
    assert nothing.value.tolist() == [2.0, 2.0]


def test_the_information_is_that_of_single_rows(family: Moe) -> None:
    model, own = next(experts_alone(family, some_probes(family)))
    layers = linears(family, model)
    information = diagonal(model, layers, own)
    slow = {name: torch.zeros_like(value) for name, value in information.items()}
    for probe in own:
        for row in range(len(probe.inputs["input_ids"])):
            alone = {name: value[row : row + 1] for name, value in probe.inputs.items()}
            for surprise in probe.surprise(model(**alone).logits):
                slopes = torch.autograd.grad(
                    surprise.sum(), [model.get_parameter(name) for name in slow], retain_graph=True
                )
                for name, slope in zip(slow, slopes, strict=True):
                    slow[name] += slope.square()
    assert all(value.sum() > 0 for value in slow.values())
    for name, value in slow.items():
        torch.testing.assert_close(information[name], value, rtol=1e-3, atol=1e-6 * float(value.max()))


def test_every_expert_needs_rows(family: Moe) -> None:
    for probes in (some_probes(family)[:-1], [*some_probes(family)[:-1], []]):
        with pytest.raises(DataError, match="each of the 4 experts"):
            fisher(family, probes)


def test_only_the_ffns_differ_from_the_average(family: Moe) -> None:
    average = family.dense().state_dict()
    merged = fisher(family, some_probes(family)).state_dict()
    changed = {name for name, value in merged.items() if not torch.equal(value, average[name])}
    assert changed
    assert changed <= {piece.target for piece in family.plan.blended}
    assert all(value.isfinite().all() for value in merged.values())
