import numpy as np
import torch

from tanbr.lab.dense import DenseModel
from tanbr.merge import Moe


class Mute(DenseModel):
    def answers(self, texts):
        return []


def test_a_blend_is_merged_once_and_another_merge_may_take_its_place(moe: Moe) -> None:
    model, blend = Mute(moe, batch=4), np.eye(8)[2]
    model.swap(blend)
    target = next(iter(moe.plan.blended)).target
    weight = model.model.get_parameter(target)
    assert torch.equal(weight, dict(moe.tensors(blend, changing=True))[target])
    weight.data.zero_()
    model.swap(blend)  # it is there already: nothing is read
    assert not weight.any()
    model.put(moe.dense(np.eye(8)[3]))
    assert model.blend is None
    assert torch.equal(weight, dict(moe.tensors(np.eye(8)[3], changing=True))[target])


def test_texts_of_like_length_share_a_batch(moe: Moe) -> None:
    assert Mute(moe, batch=2).by_length([5, 1, 4, 2, 3]) == [[1, 3], [4, 2], [0]]
