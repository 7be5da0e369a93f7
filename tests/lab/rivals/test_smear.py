import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.rivals.toy import D, Toy
from tanbr.lab.rivals.smear import Smear
from tanbr.moe.layer import TaskRouting, routed


def test_merges_by_hand() -> None:
    model = Toy()
    rival = Smear(model)
    rival.trained()[0].data = torch.tensor([[3.0, 0, 0], [0, 0, 0]])
    x = torch.tensor([[[1.0, 6.0, 0.0], [-1.0, 0.0, 6.0]]])
    p = torch.tensor([3.0, 0.0]).softmax(dim=0)[0]  # chance that the first token is doubled; the second's: 1 − p
    with rival.serving():
        expected = torch.stack([(2 * p - (1 - p)) * x[0, 0], (2 * (1 - p) - p) * x[0, 1]])
        torch.testing.assert_close(model(x)[0], expected)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_sure_gate_is_that_expert(seed) -> None:
    rng = torch.Generator().manual_seed(seed)
    model = Toy(torch.randn(3, D, D, generator=rng))
    rival = Smear(model)
    x = torch.randn(4, 2, D, generator=rng)
    x[..., 0] = 1.0
    for expert in range(3):
        rival.trained()[0].data = torch.zeros(3, D)
        rival.trained()[0].data[expert, 0] = 1e4
        with torch.inference_mode():
            with rival.serving():
                merged = model(x)
            with routed(model, TaskRouting(torch.full((4,), expert))):
                torch.testing.assert_close(merged, model(x))
