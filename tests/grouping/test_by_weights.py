import numpy as np
import pytest
import torch

from tanbr.errors import InputError
from tanbr.grouping import by_weights as module
from tanbr.grouping.by_weights import by_weights, centred_gram, distances
from tanbr.merge import Moe
from tanbr.router.groups import Groups

PLANTED = Groups.by_labels((np.arange(64) % 8).tolist())


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
    read = type(many.experts).rows

    def counted(experts, piece, chosen, part=slice(None)):
        rows = read(experts, piece, chosen, part)
        sizes.append(rows.numel())
        return rows

    monkeypatch.setattr(type(many.experts), "rows", counted)
    monkeypatch.setattr(module, "BLOCK", 64 * 100)
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
    np.testing.assert_allclose(centred_gram(many, site), expected, rtol=0, atol=bound)


def test_more_groups_than_experts_are_refused_before_anything_is_read(many: Moe) -> None:
    with pytest.raises(InputError, match="64 experts make 2 to 64 groups"):
        by_weights(many, into=65)
