"""The un-merged MoE, run from disk on the CPU: its answers are what a merged model is compared with.

When a site has run, the mapped pages it touched are let go: the experts are never all in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.moe.checkpoint import FileWatch
from tanbr.moe.families import CLASSES
from tanbr.moe.layer import BY_GATES, MoeSite, TaskRouting, route
from tanbr.serve.decode import decoder_start
from tanbr.tasks.card import FILE


class Shadow:
    """Answers as the whole MoE would; `experts_of` (V,) is each task's expert, unless the MoE routes by itself."""

    def __init__(self, moe: Moe, *, experts_of: Sequence[int] = ()) -> None:
        self._model = _lazy(moe)
        self._files = FileWatch(moe.checkpoint.files)
        self._experts_of = np.array(experts_of, dtype=np.intp)  # (V,)
        sites = [module for module in self._model.modules() if isinstance(module, MoeSite)]
        self._by_task = bool(sites) and sites[0].gate is None
        if self._by_task and not experts_of:
            raise CheckpointError(
                f"{moe.path} routes by task, but its {FILE} does not say which expert was trained for which task; "
                "write it there (expert_tasks), or turn the reward source shadow off"
            )
        if sites and not self._by_task:
            route(self._model, BY_GATES)
        for module in sites or _blocks(self._model):
            module.register_forward_hook(lambda *_: moe.checkpoint.release())

    @torch.inference_mode()
    def labels(self, inputs: Mapping[str, Tensor], tasks: NDArray[np.intp], classes: int) -> NDArray[np.intp]:
        """Label (column) of each of n texts of `tasks` (n,); CheckpointError if the checkpoint has changed."""
        self._route(tasks)
        best: NDArray[np.intp] = self._model(**inputs).logits[:, :classes].argmax(dim=1).numpy()
        return best

    @torch.inference_mode()
    def agreement(self, inputs: Mapping[str, Tensor], tokens: Sequence[int], task: int) -> float:
        """Share of the written tokens that the MoE would have written too, each after the ones before it."""
        if not tokens:
            return 1.0
        self._route(np.array([task]))
        answer = torch.tensor([list(tokens)])
        if self._model.config.is_encoder_decoder:
            start = torch.full((1, 1), decoder_start(self._model))
            best = self._model(**inputs, decoder_input_ids=torch.cat([start, answer[:, :-1]], dim=1)).logits.argmax(-1)
        else:
            ids = torch.cat([inputs["input_ids"], answer], dim=1)
            best = self._model(input_ids=ids).logits.argmax(-1)[:, -len(tokens) - 1 : -1]
        return float((best == answer).float().mean())

    def _route(self, tasks: NDArray[np.intp]) -> None:
        self._files.check()
        if self._by_task:
            route(self._model, TaskRouting(torch.from_numpy(self._experts_of[tasks])))


def _lazy(moe: Moe) -> Any:
    """Build the un-merged model with the checkpoint's own tensors as parameters."""
    name = moe.config["architectures"][0]
    cls = CLASSES.get(name) or getattr(transformers, name)
    with no_init_weights():  # values that nobody writes take no memory
        model = cls(cls.config_class(**moe.config))
    views = {tensor: moe.checkpoint.tensor(tensor) for tensor in moe.checkpoint.specs}
    found = model.load_state_dict(views, strict=False, assign=True)
    model.tie_weights()
    held = {tensor.untyped_storage().data_ptr() for tensor in views.values()}
    empty = [name for name, tensor in model.named_parameters() if tensor.untyped_storage().data_ptr() not in held]
    if empty or found.unexpected_keys:
        raise CheckpointError(
            f"the un-merged {moe.family.model_type} model cannot run from its file "
            f"({(empty or found.unexpected_keys)[0]} is stored in another form); turn the reward source shadow off"
        )
    return model.eval()


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    return [block for blocks in lists for block in blocks]
