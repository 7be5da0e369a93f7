"""What trains: K dense models that share all but their FFNs, which is a task-routed MoE; K LoRA adapters; or gates.

The K models are views of the same tensors, in eval mode, so that a step depends on its number alone.
"""

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from tanbr.errors import ConfigError
from tanbr.lab.gates import BALANCE, add_gates, heard, real_tokens
from tanbr.lab.train.checkpoints import upcycled, write
from tanbr.lab.train.upcycle import ffn_names
from tanbr.moe.layer import BY_GATES, route, sites_of
from tanbr.moe.writing import new_folder
from tanbr.tasks.card import Card, write_card
from tanbr.tasks.rows import Task
from tanbr.types import FloatArray


class ExpertViews(nn.Module):
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
        return len(self._views)

    def view(self, expert: int) -> Any:
        """Give the dense model with an expert's FFNs."""
        return self._views[expert]

    def weights(self, expert: int) -> dict[str, nn.Parameter]:
        """List an expert's FFN tensors by the dense model's names for them."""
        own: Any = self.experts[expert]
        return dict(zip(self.names, own, strict=True))

    def shared(self) -> dict[str, nn.Parameter]:
        """List the dense model's parameters but its FFNs."""
        ffns = set(self.names)
        return {name: value for name, value in self.dense.named_parameters() if name not in ffns}

    def _view(self, expert: int) -> Any:
        same = {id(tensor): tensor for tensor in (*self.dense.parameters(), *self.dense.buffers())}
        own = {id(self.dense.get_parameter(name)): value for name, value in self.weights(expert).items()}
        return copy.deepcopy(self.dense, same | own)  # the copy takes these tensors as they are

    def backward(
        self,
        losses: Sequence[tuple[int, Callable[[Any], Tensor]]],
        *,
        workers: Executor,
        blends: FloatArray | None = None,
    ) -> list[float]:
        """Add the gradients of losses, each (expert, function of its view); give the losses' values.

        With `blends` (losses, K) each is of a blend of all experts, which it teaches by weight. Gradients of models
        that run side by side are added in order.
        """
        rows = [None] * len(losses) if blends is None else list(blends)
        values = []
        for value, pairs in workers.map(self._gradients, *zip(*losses, strict=True), rows):
            values.append(value)
            for weight, gradient, share in pairs:
                weight.grad = gradient * share if weight.grad is None else weight.grad.add_(gradient, alpha=share)
        return values

    def _gradients(
        self, expert: int, loss_of: Callable[[Any], Tensor], blend: FloatArray | None
    ) -> tuple[float, list[tuple[nn.Parameter, Tensor, float]]]:
        """Give a loss and its gradients: of a parameter, the gradient, and the share of it that the parameter gets."""
        view = self._views[expert]
        if blend is None:
            weights = [weight for weight in view.parameters() if weight.requires_grad]
            loss = loss_of(view)
            found = torch.autograd.grad(loss, weights)
            return loss.item(), [(weight, gradient, 1.0) for weight, gradient in zip(weights, found, strict=True)]
        merged = {name: self._merged(name, blend) for name in self.names}
        shared = [weight for weight in self.shared().values() if weight.requires_grad]
        learning = [name for name in self.names if merged[name].requires_grad]
        loss = loss_of(lambda **inputs: functional_call(view, merged, args=(), kwargs=inputs))
        found = torch.autograd.grad(loss, [*shared, *(merged[name] for name in learning)])
        pairs = [(weight, gradient, 1.0) for weight, gradient in zip(shared, found, strict=False)]
        for name, gradient in zip(learning, found[len(shared) :], strict=True):
            pairs += [(self.weights(k)[name], gradient, float(blend[k])) for k in range(len(self))]
        return loss.item(), pairs

    def _merged(self, name: str, blend: FloatArray) -> Tensor:
        """Blend an FFN tensor of all experts (K,), as a leaf that learns if they do."""
        own = [self.weights(k)[name] for k in range(len(self))]
        with torch.no_grad():
            merged = torch.zeros_like(own[0])
            for weight, share in zip(own, blend, strict=True):
                merged.add_(weight, alpha=float(share))
        return merged.requires_grad_(own[0].requires_grad)

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the MoE that started from `dense` to the folder `out`, with its card; one expert as a dense model."""
        if len(self) == 1:
            return write(self.view(0), out, dense, card=Card(tuple(tasks)))
        stacked = {name: torch.stack([self.weights(k)[name].detach() for k in range(len(self))]) for name in self.names}
        moe = upcycled(dense, experts=len(self))
        moe.load_state_dict({**self.dense.state_dict(), **stacked})
        card = Card(tuple(tasks), tuple(task.name for task in tasks), os.path.relpath(dense, out))
        return write(moe, out, dense, card=card)


class TokenViews(ExpertViews):
    """An MoE whose gates choose two experts for every token, whatever its task; a view of it per task runs its rows.

    A load-balance loss, K Σ_k f_k P_k a site, keeps all experts in use. P_k is of a task's batch; f_k is of all tasks,
    so that an expert may prefer some, and of the step before, so that tasks can run side by side.
    """

    sent: Tensor  # (V, sites, K) share of a task's tokens that went to an expert first, in the last step

    def __init__(self, moe: Any, *, experts: int, seed: int) -> None:
        nn.Module.__init__(self)
        add_gates(moe, seed=seed)
        route(moe, BY_GATES)
        self.dense = moe
        self.names = ffn_names(moe)
        self.experts = nn.ModuleList([nn.ParameterList(moe.get_parameter(name) for name in self.names)])
        self._views = [self._view(0) for _ in range(experts)]
        self.register_buffer("sent", torch.full((experts, len(sites_of(moe)), experts), 1 / experts))

    def backward(self, *args: Any, **options: Any) -> list[float]:
        """Add the gradients of the tasks' losses and of the balance; give the values of both together."""
        self._load = self.sent.mean(dim=0)  # (sites, K)
        return super().backward(*args, **options)

    def _gradients(
        self, expert: int, loss_of: Callable[[Any], Tensor], blend: FloatArray | None
    ) -> tuple[float, list[tuple[nn.Parameter, Tensor, float]]]:
        view, K = self._views[expert], len(self)
        shares: list[Tensor] = []  # (K,) a site

        def answer(**inputs: Tensor) -> Any:
            with heard(view) as said:
                output = view(**inputs)
            pairs = zip(said, real_tokens(view, inputs), strict=True)
            logits = [site.logits[flags.flatten()] for site, flags in pairs]  # (m, K) a site
            shares.extend(of.softmax(dim=1, dtype=self.sent.dtype).mean(dim=0) for of in logits)
            self.sent[expert] = torch.stack([of.argmax(dim=1).bincount(minlength=K) / len(of) for of in logits])
            return output

        def loss(_: Any) -> Tensor:
            return loss_of(answer) + BALANCE * (self._load * torch.stack(shares)).sum()  # K / V = 1: a task is 1 / V

        return super()._gradients(expert, loss, blend)

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the MoE with its gates to the new folder `out`; its card names tasks, but no expert's."""
        return write(self.dense, out, dense, card=Card(tuple(tasks)))


LIST = "experts.toml"


class AdapterViews(ExpertViews):
    """A dense model that stays as it is, and K sets of LoRA factors for all of its linear maps, all equal at first."""

    def __init__(self, dense: PreTrainedModel, *, experts: int, rank: int, seed: int) -> None:
        nn.Module.__init__(self)
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise ConfigError("adapters are trained with peft; pip install 'tanbr[adapters]'") from None
        self.dense = dense.requires_grad_(False)
        same = {id(tensor): tensor for tensor in (*dense.parameters(), *dense.buffers())}
        self._adapters: list[Any] = []  # a list, so that they are no sub-modules
        settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
        for _ in range(experts):
            torch.manual_seed(seed)
            own = copy.deepcopy(dense, dict(same))  # the copy takes these tensors as they are
            self._adapters.append(get_peft_model(own, settings).eval())
        self._views = [adapter.get_base_model() for adapter in self._adapters]
        learning = [
            {name: value for name, value in view.named_parameters() if value.requires_grad} for view in self._views
        ]
        self.names = list(learning[0])
        self.experts = nn.ModuleList(nn.ParameterList(own.values()) for own in learning)

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the adapters to the new folder `out`, one as PEFT does for each task, and a list of them all."""
        write_card(dense, Card(tuple(tasks)))
        base = os.path.relpath(dense, out)
        lines = [f'base = "{base}"', ""]
        with new_folder(out) as folder:
            for task, adapter in zip(tasks, self._adapters, strict=True):
                adapter.peft_config["default"].base_model_name_or_path = f"../{base}"
                adapter.save_pretrained(folder / task.name, save_embedding_layers=False)
                (folder / task.name / "README.md").unlink(missing_ok=True)  # an empty form
                lines += ["[[experts]]", f'path = "{task.name}"', f'task = "{task.name}"', ""]
            (folder / LIST).write_text("\n".join(lines), encoding="utf-8")
        return out
