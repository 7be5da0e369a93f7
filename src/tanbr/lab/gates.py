"""Learned gates: fresh ones for a model that has none, what they say during a pass, and what trains them.

`Gated` is the contract between a rival that trains gates (`rivals/`) and whatever drives the training (`train/`):
neither imports the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tanbr.errors import InputError
from tanbr.moe.layer import ExpertLinear, Routing, routed, sites_of

Inputs: TypeAlias = Mapping[str, Tensor]  # what the model takes in: attention_mask (n, length), …; labels for T5
RowLosses: TypeAlias = Callable[[], Tensor]  # runs the model, routed as it then is: the task loss of every row (n,)

STD = 0.02  # of a fresh gate's weights, transformers' usual value


def add_gates(model: Any, *, seed: int = 0) -> None:
    """Give every site that has no gate a fresh one; it is saved with the model."""
    rng = torch.Generator().manual_seed(seed)
    for site in sites_of(model):
        if site.gate is None:
            experts = next(module for module in site.modules() if isinstance(module, ExpertLinear)).weight  # (K, F, D)
            site.gate = nn.Linear(experts.shape[2], experts.shape[0], bias=False, device="meta")
            drawn = torch.randn(experts.shape[0], experts.shape[2], generator=rng) * STD
            site.gate.weight = nn.Parameter(drawn.to(experts))
    model.config.router = True


def gates_of(model: nn.Module) -> list[nn.Linear]:
    """Every site's gate, in the order in which they run."""
    gates = [site.gate for site in sites_of(model) if site.gate is not None]
    if len(gates) < len(sites_of(model)):
        raise InputError("this model has no gates; add fresh ones with tanbr.lab.gates.add_gates(model)")
    return gates


class Gated(nn.Module, ABC):
    """A model's gates, and how they learn from labelled batches.

    The module's own parameters are only what the model does not hold (a baseline, say), so that both can be saved
    side by side; `trained` lists the gates as well.
    """

    routing: Routing  # of every token, in training as when served

    def __init__(self, model: Any, *, seed: int = 0) -> None:
        super().__init__()
        add_gates(model, seed=seed)
        self._model = (model,)  # in a tuple, where torch does not look for parameters

    @property
    def model(self) -> Any:
        """The un-merged model whose gates learn."""
        return self._model[0]

    def trained(self) -> list[nn.Parameter]:
        """List what learns: the model's gates, and what the rival has beside them."""
        return [*chain.from_iterable(gate.parameters() for gate in gates_of(self.model)), *self.parameters()]

    @abstractmethod
    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:
        """Route the model, call `row_losses` once, and return the whole loss of the step, ready for backward."""

    def serving(self) -> AbstractContextManager[None]:
        """Route the model as it is served; also around `generate`."""
        return routed(self.model, self.routing)


@dataclass(frozen=True, eq=False)
class Said:
    """What one site's gate said to the m tokens (or sequences) of a pass."""

    seen: Tensor  # (m, D)
    logits: Tensor  # (m, K)
    choice: Tensor  # (m,) the expert with the highest logit, after the change where there was one


@contextmanager
def heard(model: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Said]]:
    """Collect what the gates say, in the order of the sites; `change` alters the logits that the sites then go by."""
    said: list[Said] = []

    def hear(_: nn.Module, args: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        changed = None if change is None else change(logits)
        said.append(Said(args[0], logits, (logits if changed is None else changed).argmax(dim=-1)))
        return changed

    hooks = [gate.register_forward_hook(hear) for gate in gates_of(model)]
    try:
        yield said
    finally:
        for hook in hooks:
            hook.remove()


def real_tokens(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Tell padding from tokens at every site: flags (n, length), in the order of the sites."""
    read = inputs["attention_mask"] > 0
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        return [read] * len(sites_of(model))
    if "labels" not in inputs:
        raise InputError("an encoder-decoder model's inputs must hold labels (n, length), −100 where there is none")
    answers = len(sites_of(decoder))  # the decoder's sites run last
    return [read] * (len(sites_of(model)) - answers) + [inputs["labels"] != -100] * answers


def gumbel(logits: Tensor, rng: torch.Generator) -> Tensor:
    """Add the noise with which the highest of logits (m, K) is a draw from their softmax."""
    uniform = torch.rand(logits.shape, generator=rng, dtype=logits.dtype).clamp_min(torch.finfo(logits.dtype).tiny)
    return logits - (-uniform.log()).log().to(logits.device)
