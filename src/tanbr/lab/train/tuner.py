"""What is tuned while a router or gates learn: the norms of a model."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.lab.train.objectives import Batch, Objective
from tanbr.types import Blend


class Tuner(nn.Module):
    """The norms of a model; they are its state."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.requires_grad_(False)
        self._model = (model,)  # in a tuple, where torch does not look for parameters
        self.norms = nn.ParameterList(norms(model).values()).requires_grad_(True)

    @property
    def model(self) -> Any:
        """The model that answers."""
        return self._model[0]

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Leave the gradients of a labelled batch; the rows' losses (n,)."""
        losses = objective.row_losses(self.model, batch)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    def choose(self, task_mix: ArrayLike) -> Blend | None:  # noqa: ARG002
        """Choose the blend (K,) for requests of a mix (V,); None where there is nothing to choose, or gates do."""
        return None

    def settle(self, blend: Blend | None) -> None:
        """Prepare the model to answer with a choice; only blends need it."""


def norms(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the parameters of a model's normalisation layers."""
    return {
        f"{at}.{name}": weight
        for at, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        for name, weight in module.named_parameters(recurse=False)
    }
