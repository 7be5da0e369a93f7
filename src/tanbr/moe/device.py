"""Where a model computes: the torch device that a name means here.

Tensors are made where the model is (`model.device`), and come back by `.cpu()`. Whatever is drawn is drawn on the CPU,
so that a seed means the same everywhere.
"""

import torch

from tanbr.errors import ConfigError


def device_of(name: str) -> torch.device:
    """Find a torch device that works here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        said = f"device must be one that torch can use here (got {name!r}: {reason}); set device to cpu"
        raise ConfigError(said) from None
    return device
