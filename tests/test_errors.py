import inspect

import pytest

from tanbr import errors


def test_every_error_of_a_user_is_one_kind() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(kinds) > 5
    assert all(issubclass(kind, errors.TanbrError) for kind in kinds)


@pytest.mark.parametrize(("kind", "usual"), [(errors.InputError, ValueError), (errors.DecisionError, LookupError)])
def test_callers_may_catch_what_python_would_raise(kind, usual) -> None:
    with pytest.raises(usual, match="said"):
        raise kind("said")
