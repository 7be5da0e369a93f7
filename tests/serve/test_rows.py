import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.serve.rows import floats, shown, vector


def test_vectors_come_back_bit_for_bit_and_nan_is_null() -> None:
    values = np.array([0.1, np.nan, 1 / 3])
    assert "null" in shown(values)
    again = vector(shown(values))
    np.testing.assert_array_equal(again, values)
    assert not again.flags.writeable


@pytest.mark.parametrize("text", ["no", '"words"', '["a"]', "3", "[" * 100_000])
def test_what_is_no_vector_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="where a vector belongs"):
        vector(text)


def test_bytes_are_read_as_they_were_kept() -> None:
    assert floats(np.array([0.5, 0.25], dtype=np.float32).tobytes()).tolist() == [0.5, 0.25]
