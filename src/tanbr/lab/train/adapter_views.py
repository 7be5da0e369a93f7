"""K LoRA adapters of one dense model, which stays as it is: experts of a few percent of its size, while they train."""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tanbr.errors import ConfigError
from tanbr.lab.train.expert_views import ExpertViews
from tanbr.lab.train.first_token import read_first_token
from tanbr.moe.writing import new_folder
from tanbr.tasks.card import Card, write_card
from tanbr.tasks.rows import Task

LIST = "experts.toml"


class AdapterViews(ExpertViews):
    """A dense model, and K sets of LoRA factors for all of its linear maps, all equal at first."""

    def __init__(self, dense: PreTrainedModel, *, experts: int, rank: int, seed: int) -> None:
        nn.Module.__init__(self)
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise ConfigError("adapters are trained with peft; pip install 'tanbr[adapters]'") from None
        self.dense = dense.requires_grad_(False)
        same = {id(tensor): tensor for tensor in (*dense.parameters(), *dense.buffers())}
        self._adapters: list[Any] = []  # a list, so that they are no sub-modules
        for _ in range(experts):
            torch.manual_seed(seed)
            settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
            own = read_first_token(copy.deepcopy(dense, dict(same)))  # the copy takes these tensors as they are
            self._adapters.append(get_peft_model(own, settings).eval())
        self._views = [adapter.get_base_model() for adapter in self._adapters]
        learning = [
            {name: value for name, value in view.named_parameters() if value.requires_grad} for view in self._views
        ]
        self.names = list(learning[0])
        self.experts = nn.ModuleList(nn.ParameterList(own.values()) for own in learning)

    def shared(self) -> dict[str, nn.Parameter]:
        """List what the adapters share and learn together: nothing."""
        return {}

    def export(self, dense: Path, out: Path, *, tasks: Sequence[Task]) -> Path:
        """Write the adapters to the new folder `out`, one as PEFT does for each task, and a list of them all."""
        write_card(dense, Card(tuple(tasks)))
        base = os.path.relpath(dense, out)
        lines = [f'base = "{base}"', ""]
        with new_folder(out) as folder:
            for task, adapter in zip(tasks, self._adapters, strict=True):
                adapter.peft_config["default"].base_model_name_or_path = f"../{base}"
                adapter.save_pretrained(folder / task.name, save_embedding_layers=False)
                (folder / task.name / "README.md").unlink(missing_ok=True)  # a form that nobody has filled in
                lines += ["[[experts]]", f'path = "{task.name}"', f'task = "{task.name}"', ""]
            (folder / LIST).write_text("\n".join(lines), encoding="utf-8")
        return out
