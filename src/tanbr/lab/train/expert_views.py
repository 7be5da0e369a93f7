"""What trains: K dense models that share all but their FFNs, which is a task-routed MoE; K LoRA adapters; or gates."""

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

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

View: TypeAlias = Callable[..., Any]  # what a model's forward takes → its output


class ExpertViews(nn.Module):
    """A dense model and K sets of FFN weights, all equal at first; one set is the model's own."""

    def __init__(self, dense: PreTrainedModel, *, experts: int) -> None:
        super().__init__()
        self.dense = dense
        self.names = ffn_names(dense)  # of the dense model's FFN tensors
        own = [dense.get_parameter(name) for name in self.names]
        sets = [own] if experts == 1 else [[nn.Parameter(one.detach().clone()) for one in own] for _ in range(experts)]
        self.experts = nn.ModuleList(map(nn.ParameterList, sets))
        for value in own:
            value.requires_grad_(experts == 1)

    def view(self, task: int, blend: FloatArray | None = None) -> View:
        """Give the dense model with a task's FFNs, or with a blend (K,) of all experts', which all learn."""
        own: dict[str, Any] = self.weights(task % len(self.experts))
        if blend is not None:
            each = [self.weights(k) for k in range(len(blend))]
            own = {name: sum(float(x) * of[name] for x, of in zip(blend, each, strict=True)) for name in self.names}
        return lambda **inputs: functional_call(self.dense, own, args=(), kwargs=inputs)

    def weights(self, expert: int) -> dict[str, nn.Parameter]:
        """List an expert's FFN tensors by the dense model's names for them."""
        own: Any = self.experts[expert]
        return dict(zip(self.names, own, strict=True))

    def shared(self) -> dict[str, nn.Parameter]:
        """List the dense model's parameters but its FFNs."""
        ffns = set(self.names)
        return {name: value for name, value in self.dense.named_parameters() if name not in ffns}

    def penalty(self) -> Tensor | float:
        """Give what is added to the loss of the batch that a view has just run."""
        return 0.0

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the MoE that started from `dense` to the folder `out`, with its card; one expert as a dense model."""
        K = len(self.experts)
        if K == 1:
            return write(self.dense, out, dense, card=Card(tuple(tasks)))
        stacked = {name: torch.stack([self.weights(k)[name].detach() for k in range(K)]) for name in self.names}
        moe = upcycled(dense, experts=K)
        moe.load_state_dict({**self.dense.state_dict(), **stacked})
        card = Card(tuple(tasks), tuple(task.name for task in tasks), os.path.relpath(dense, out))
        return write(moe, out, dense, card=card)


class TokenViews(ExpertViews):
    """An MoE whose gates choose two experts for every token, whatever its task.

    A load-balance loss, K Σ_k f_k P_k a site, keeps all experts in use. P_k is of a task's batch; f_k is of the newest
    batches of all tasks, so that an expert may prefer some.
    """

    sent: Tensor  # (V, sites, K) share of the tokens of a task's newest batch that went to an expert first

    def __init__(self, moe: Any, *, experts: int, seed: int) -> None:
        nn.Module.__init__(self)
        add_gates(moe, seed=seed)
        route(moe, BY_GATES)
        self.dense = moe
        self.names = ffn_names(moe)
        self.experts = nn.ModuleList([nn.ParameterList(moe.get_parameter(name) for name in self.names)])
        self._shares: list[Tensor] = []  # (K,) a site: P_k of the newest batch
        self.register_buffer("sent", torch.full((experts, len(sites_of(moe)), experts), 1 / experts))

    def view(self, task: int, blend: FloatArray | None = None) -> View:  # noqa: ARG002
        """Give the model, whose gates are heard."""

        def answer(**inputs: Tensor) -> Any:
            with heard(self.dense) as said:
                output = self.dense(**inputs)
            pairs = zip(said, real_tokens(self.dense, inputs), strict=True)
            logits = [site.logits[flags.flatten()] for site, flags in pairs]  # (m, K) a site
            K = self.sent.shape[2]
            self._shares = [of.softmax(dim=1, dtype=self.sent.dtype).mean(dim=0) for of in logits]
            self.sent[task] = torch.stack([of.argmax(dim=1).bincount(minlength=K) / len(of) for of in logits])
            return output

        return answer

    def penalty(self) -> Tensor | float:
        """Give the balance, times K / V = 1: a task is 1 / V of a step."""
        return BALANCE * (self.sent.mean(dim=0) * torch.stack(self._shares)).sum()

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
        learning = [[one for one in adapter.parameters() if one.requires_grad] for adapter in self._adapters]
        self.experts = nn.ModuleList(nn.ParameterList(own) for own in learning)

    def view(self, task: int, blend: FloatArray | None = None) -> View:  # noqa: ARG002
        """Give the dense model with an adapter."""
        model: View = self._adapters[task].get_base_model()
        return model

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
