"""K dense models that share all but their FFNs: what a task-routed MoE is while it trains.

Each task's rows run through a dense model with the task's own FFNs in it, so that a step costs what a dense model does,
and a task that is not in the step has no gradient at all. The K models are views: they hold the same tensors. They stay
in eval mode, without dropout, so that a step depends on its number alone.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tanbr.moe.upcycle import ffn_names
from tanbr.tasks.card import Card
from tanbr.tasks.rows import Task
from tanbr.train.checkpoints import upcycled, write


class TaskExperts(nn.Module):
    """A dense model and K sets of FFN weights, all equal at first."""

    def __init__(self, dense: PreTrainedModel, *, experts: int) -> None:
        super().__init__()
        self.dense = dense
        self.names = ffn_names(dense)  # of the dense model's FFN tensors
        for name in self.names:
            dense.get_parameter(name).requires_grad_(False)
        start = [dense.get_parameter(name).detach() for name in self.names]
        self.experts = nn.ModuleList(
            nn.ParameterList(nn.Parameter(value.clone()) for value in start) for _ in range(experts)
        )
        self._views = [self._view(k) for k in range(experts)]  # a list, so that they are no sub-modules

    def __len__(self) -> int:
        return len(self.experts)

    def view(self, expert: int) -> Any:
        """Give the dense model with an expert's FFNs."""
        return self._views[expert]

    def weights(self, expert: int) -> dict[str, nn.Parameter]:
        """List an expert's FFN tensors by the dense model's names for them."""
        own: Any = self.experts[expert]
        return dict(zip(self.names, own, strict=True))

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """List all experts' FFN tensors, each with the dense model's name for it."""
        return [pair for k in range(len(self)) for pair in self.weights(k).items()]

    def shared(self) -> dict[str, nn.Parameter]:
        """List the dense model's parameters but its FFNs."""
        ffns = set(self.names)
        return {name: value for name, value in self.dense.named_parameters() if name not in ffns}

    def _view(self, expert: int) -> Any:
        same = {id(tensor): tensor for tensor in (*self.dense.parameters(), *self.dense.buffers())}
        own = {id(self.dense.get_parameter(name)): value for name, value in self.weights(expert).items()}
        return copy.deepcopy(self.dense, same | own)  # the copy takes these tensors as they are

    def backward(self, losses: Sequence[tuple[int, Callable[[Any], Tensor]]], *, workers: Executor) -> list[float]:
        """Add the gradients of losses, each (expert, function of its view); give the losses' values.

        The views run side by side; their gradients are added in order, so that sums do not depend on timing.
        """

        def gradients(expert: int, loss_of: Callable[[Any], Tensor]) -> tuple[float, list[tuple[Tensor, Tensor]]]:
            weights = [weight for weight in self._views[expert].parameters() if weight.requires_grad]
            loss = loss_of(self._views[expert])
            return loss.item(), list(zip(weights, torch.autograd.grad(loss, weights), strict=True))

        values = []
        for value, pairs in workers.map(gradients, *zip(*losses, strict=True)):
            values.append(value)
            for weight, gradient in pairs:
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        return values

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the MoE to the new folder `out`, with its card: a task an expert. Training started from `dense`."""
        stacked = {name: torch.stack([self.weights(k)[name].detach() for k in range(len(self))]) for name in self.names}
        moe = upcycled(dense, experts=len(self))
        moe.load_state_dict({**self.dense.state_dict(), **stacked})
        return write(moe, dense, out, card=Card(tuple(tasks), tuple(task.name for task in tasks)))
