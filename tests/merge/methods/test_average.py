import pytest

import tanbr
from merge.methods.reference import BLENDS, compare, weighted
from moe.tiny import K


@pytest.mark.parametrize("blend", BLENDS)
def test_average(related, blend) -> None:
    compare(tanbr.open(related), blend, lambda c: weighted(c.experts, c.blend), roundings=K + 1)
