"""A blend of adapters as one adapter: the factors side by side, which adds just what the blend adds.

    Σ_k x_k s_k B_k A_k = [x_1 s_1 B_1 | x_2 s_2 B_2 | …] [A_1; A_2; …]

Its rank is the sum of the ranks; layers that fewer adapters change are filled with zeros, so that all have one rank
(not every engine takes several).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from tanbr.errors import InputError
from tanbr.merge.blend import finite
from tanbr.merge.export import About, certify_to
from tanbr.merge.sources.over_base import OverBase
from tanbr.merge.sources.peft_folder import PREFIX, SETTINGS, WEIGHTS
from tanbr.moe.checkpoint import TensorSpec
from tanbr.moe.writing import new_folder, write_file, write_json

if TYPE_CHECKING:
    from tanbr.merge.moe import Moe


def export_adapter(
    moe: "Moe", out: str | Path, *, blend: ArrayLike, certify: bool = True, about: About | None = None
) -> Path:
    """Write the blend (K,) of adapters to the new folder `out`, as PEFT saves adapters, with a certificate."""
    source = joinable(moe)
    weights = moe.check(blend).tolist()
    ranks = {
        target: sum(one.down.shape[0] for k, one in adds.items() if weights[k])
        for target, adds in source.factors.items()
    }
    rank = max(1, *ranks.values())
    changed = [target for target in ranks if ranks[target]] or list(ranks)[:1]  # the base alone: an adapter of zeros
    tensors: dict[str, Tensor] = {}
    for target in changed:
        tensors |= _joined(source, target, weights, rank)
    if any(piece.target not in source.factors for piece in moe.plan.blended):
        merged = moe.tensors(weights, changing=True)
        tensors |= {PREFIX + name: one for name, one in merged if name not in source.factors}
    for name, tensor in tensors.items():
        finite(name, tensor)
    with new_folder(out) as folder:
        write_json(folder / SETTINGS, _settings(source, changed, rank))
        specs = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
        write_file(folder / WEIGHTS, specs, iter(tensors.values()))
        if certify:
            certify_to(folder, moe, weights, dense=None, title=Path(out).name, about=about)
    return Path(out)


def joinable(moe: "Moe") -> OverBase:
    """Give the adapters, if every blend of them is one adapter; refuse otherwise, and say why."""
    source = moe.source
    if not isinstance(source, OverBase) or len(source.adapters) < source.trained:
        raise InputError("only a blend of adapters can be written as an adapter; give two or more with --expert")
    if moe.method.name != "average":
        raise InputError(f"a merge by {moe.method.name} is no sum of adapters; write it as a model, or use average")
    if any(adapter.settings.get("bias", "none") != "none" for adapter in source.adapters):
        raise InputError("adapters with biases of their own cannot be joined into one; write the merge as a model")
    if len(set(source.expert_labels[: source.trained])) > 1:
        raise InputError("adapters with heads over different labels fit no one base; write the merge as a model")
    return source


def _joined(source: OverBase, target: str, weights: list[float], rank: int) -> dict[str, Tensor]:
    """Put the factors of one module side by side, with the weights in B, and zeros up to `rank`."""
    like = next(iter(source.factors[target].values()))
    sides = source.product(target, weights)
    if sides is None:
        down, up = torch.zeros(rank, like.down.shape[1]), torch.zeros(like.up.shape[0], rank)
    else:
        up, down = (side.float() for side in sides)
        up, down = (down.T, up.T) if like.transposed else (up, down)
        spare = rank - len(down)
        down, up = F.pad(down, (0, 0, 0, spare)), F.pad(up, (0, spare))
    module = PREFIX + target.removesuffix(".weight")
    if like.embedding:
        return {f"{module}.lora_embedding_A": down, f"{module}.lora_embedding_B": up}
    return {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}


def _settings(source: OverBase, targets: list[str], rank: int) -> dict[str, object]:
    every = [adapter.settings for adapter in source.adapters]
    kinds = {settings.get("task_type") for settings in every}
    saved = sorted({name for settings in every for name in settings.get("modules_to_save") or ()})
    return {
        "peft_type": "LORA",
        "task_type": kinds.pop() if len(kinds) == 1 else None,
        "base_model_name_or_path": source.adapters[0].base or str(source.checkpoint.path),
        "r": rank,
        "lora_alpha": rank,  # the factors carry the scales already
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "fan_in_fan_out": source.adapters[0].settings.get("fan_in_fan_out") is True,
        "target_modules": [target.removesuffix(".weight") for target in targets],
        "modules_to_save": saved or None,
        "inference_mode": True,
    }
