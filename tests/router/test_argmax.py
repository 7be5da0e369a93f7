import numpy as np
from tanbr.router.argmax import first_best


def test_what_is_equal_but_for_rounding_goes_by_order():
    assert first_best(np.array([0.1, 0.7, 0.7 + 1e-15, 0.3])) == 1
    assert first_best(np.array([0.1, 0.7, 0.7 + 1e-6])) == 2
    assert first_best(np.array([1e6, 1e6 + 1e-7])) == 0  # rounding grows with the size of the bound
    assert first_best(np.array([-np.inf, -3.0])) == 1
