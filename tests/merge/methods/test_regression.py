"""Merges by regression: by hand for one layer, then against RegMean and the experts on whole models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moe.tiny import K, build
from tanbr.errors import CheckpointError, OutputError
from tanbr.lab.rivals.probes import Probe, Probes
from tanbr.lab.rivals.regmean import measure, regmean
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.gram_matrices import GramMatrices, shrunk, solved, write_gram_matrices
from tanbr.moe.family import Piece

BLEND = np.array([0.5, 0.3, 0.2, 0.0])


def some_probes(experts: int = K) -> Probes:
    rng = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 64, (experts, 60, 12), generator=rng)
    return [[Probe({"input_ids": own, "attention_mask": torch.ones_like(own)}, lambda x: x)] for own in ids]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regression") / "moe"
    build("bert_moe").save_pretrained(path)
    measure(open_moe(path), some_probes(), rows=60)
    return path


@pytest.fixture
def regressed(folder: Path) -> Moe:
    return open_moe(folder, method="regression")


def of_one_origin(*, columns: int, rows: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Give (G, G Wᵀ) and weights (K, out, in) of experts that differ from a base on what their inputs hold most of."""
    rng = torch.Generator().manual_seed(1)
    base = torch.randn(rows, columns, generator=rng).double()
    pairs, weights = [], []
    for _ in range(K):
        spread = torch.randn(columns, columns, generator=rng).double() / torch.arange(1, columns + 1) ** 0.7
        gram = shrunk(spread @ spread.T)
        weights.append(base + torch.randn(rows, columns, generator=rng).double() @ gram / gram.norm())
        pairs.append((gram, gram @ weights[-1].T))
    return pairs, torch.stack(weights)


@pytest.mark.parametrize(("columns", "least"), [(48, 1 - 1e-6), (640, 0.9)])
def test_a_basis_keeps_what_regression_gains_over_the_average(columns: int, least: float, tmp_path: Path) -> None:
    pairs, weights = of_one_origin(columns=columns, rows=40)
    write_gram_matrices(tmp_path / "grams", {"x": weights.mean(dim=0)}, pairs, experts=K, fingerprint="", rows=1)
    piece = Piece("x.weight", (40, columns), ())
    kept = GramMatrices(tmp_path / "grams", [piece], experts=K, fingerprint="")
    blend = torch.tensor(BLEND)
    average = torch.einsum("k,koi->oi", blend, weights)
    merged = average.float()
    kept.add_change(merged, piece, BLEND.tolist())
    left, right = (sum(x * side for x, side in zip(blend, sides, strict=True)) for sides in zip(*pairs, strict=True))

    def error(weight: torch.Tensor) -> float:  # Σ x_k · mean ‖W u − W_k u‖² under the shrunk matrices
        away, grams = weight.double() - weights, torch.stack([gram for gram, _ in pairs])
        return float(torch.einsum("k,koi,kij,koj->", blend, away, grams, away))

    best = error(solved(left, right, average))
    assert (error(average) - error(merged)) / (error(average) - best) > least


def test_an_even_blend_is_regmean_and_one_expert_is_itself(regressed: Moe, folder: Path) -> None:
    inputs = some_probes()[0][0].inputs
    answers = [model(**inputs).logits for model in (regressed.dense(), regmean(open_moe(folder), some_probes()))]
    torch.testing.assert_close(*answers, rtol=0, atol=0.02)  # a ridge apart, where inputs are weak
    assert not torch.allclose(answers[1], open_moe(folder).dense()(**inputs).logits, rtol=0, atol=0.02)
    even, plain = regressed.dense().state_dict(), open_moe(folder).dense().state_dict()
    assert sum(not torch.equal(even[name], plain[name]) for name in even) == len(regressed.sites) * 2  # weights alone
    for name, value in regressed.dense(np.eye(K)[1]).state_dict().items():
        assert torch.equal(value, open_moe(folder).dense(np.eye(K)[1]).state_dict()[name])


def test_grams_of_other_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    other = build("bert_moe")
    with torch.no_grad():
        next(other.parameters()).add_(1)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="tanbr survey"):
        open_moe(tmp_path / "other", method="regression")
    (tmp_path / "other" / "grams").symlink_to(folder / "grams")
    with pytest.raises(CheckpointError, match="another model"):
        open_moe(tmp_path / "other", method="regression")


def test_matrices_are_measured_once(folder: Path) -> None:
    with pytest.raises(OutputError, match="grams is there already"):
        measure(open_moe(folder), some_probes(), rows=60)
