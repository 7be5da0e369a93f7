import pytest
import torch

from tanbr.errors import ConfigError
from tanbr.moe.device import device_of, finish


def test_a_name_is_a_device_that_works_here() -> None:
    assert device_of("cpu") == torch.device("cpu")
    finish(device_of("cpu"))


@pytest.mark.parametrize("name", ["cuda:97", "gpu", ""])
def test_any_other_name_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^device must be one .*\(got '{name}': [^\n]*\); set device to cpu$"):
        device_of(name)
