"""`tanbr.open`: experts, wherever they come from, as one object, and the dense models that come out of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.blend import weighted_sum
from tanbr.merge.export import export
from tanbr.merge.methods import choose
from tanbr.merge.skeleton import DensePlan, locate, skeleton
from tanbr.merge.sources import BlendOnly, ExpertSource, MoeCheckpoint, MoeOverAncestor, OverBase
from tanbr.merge.sources.expert_list import is_list, list_of, read_list
from tanbr.merge.sources.peft_folder import is_adapter, read_adapter
from tanbr.moe.checkpoint import Checkpoint, TensorFile
from tanbr.moe.device import device_of
from tanbr.moe.writing import Progress, silent
from tanbr.types import Blend, as_blend

FETCHED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "LICENSE*"]


class Moe:
    """Experts of a source (an MoE checkpoint is one) that a method of `merge/methods` merges; none is in memory."""

    def __init__(self, source: ExpertSource, *, method: str = "average", device: str = "cpu") -> None:
        self.device = device_of(device)  # where dense models are built
        self.source = source
        self.checkpoint = source.checkpoint
        self.path = source.checkpoint.path  # the base's folder where experts are checkpoints of their own
        self.family = source.family
        self.config = source.config
        self.sites = source.sites
        self.num_experts = source.count  # K
        self.plan = DensePlan(source)
        self.method = choose(method, source)
        self._trusted: set[int] = set()

    @property
    def files(self) -> list[TensorFile]:
        """The files that a merge reads."""
        return self.checkpoint.files + self.method.files

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        return self.checkpoint.fingerprint

    def dense(self, blend: ArrayLike | None = None) -> Any:
        """Build the dense transformers model, in eval mode, with `blend` merged into it (all experts alike if None)."""
        weights = self.check(blend)
        model = skeleton(self.plan)
        for _ in self.tensors(weights, into=partial(locate, model)):
            pass
        return model.to(self.device).eval()

    def merge_into(self, model: nn.Module, blend: ArrayLike) -> None:
        """Merge a blend (K,) into a dense model in place; only the tensors that depend on it change."""
        for _ in self.tensors(blend, into=partial(locate, model), changing=True):
            pass

    def tensors(
        self, blend: ArrayLike | None = None, *, into: Callable[[str], Tensor] | None = None, changing: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Merge a blend (K,), tensor by tensor: each dense tensor's name and the tensor, when it is written.

        `into` says where a tensor of a name is to be written (a new one each if None); with `changing`, only what
        depends on the blend is merged (of an MoE, the FFNs). All places are asked for before anything is written, so
        that a model that lacks one stays as it was.
        """
        weights, plan = self.check(blend).tolist(), self.plan
        targets = plan.targets(changing=changing)
        places = None if into is None else {target: into(target) for target in targets}
        if places is None:  # a new tensor is filled whole, also where no blend changes it
            whole = plan.targets()
            targets = {target: whole[target] for target in targets}
        for target, pieces in targets.items():
            out = torch.empty(plan.shapes[target], dtype=plan.specs[target].dtype) if places is None else places[target]
            with torch.no_grad():  # around the writing alone: the caller may need gradients between two tensors
                if target in plan.padded and (places is None or not changing):
                    out.zero_()
                for piece in pieces:
                    region = out[piece.region]
                    if piece.weights is None:
                        self.method.fill(region, piece, weights)
                    else:
                        fixed = [weight * piece.scale for weight in piece.weights]
                        weighted_sum(region, self.checkpoint, piece.blocks, fixed)
            yield target, out

    def release(self) -> None:
        """Unmap what merges have read so far (it stays in the page cache)."""
        for file in self.files:
            file.release()

    def export(self, blend: ArrayLike, out: str | Path, *, progress: Progress = silent) -> Path:
        """Write the merge of a blend as a stock dense checkpoint with a certificate to the new folder `out`."""
        return export(self, blend, out, progress=progress)

    def check(self, blend: ArrayLike | None) -> Blend:
        """Check a blend (uniform if None), and look through each expert of it once: no model ever gets a NaN."""
        K = self.num_experts
        weights = as_blend([1 / K] * K if blend is None else blend, experts=K)
        for expert in (k for k in range(K) if weights[k] and k not in self._trusted):
            self.source.check(expert)
            self._trusted.add(expert)
        return weights


def open(  # noqa: A001
    path: str | Path,
    *,
    experts: Sequence[str | Path] = (),
    blend_only: BlendOnly | None = None,
    base: bool | str | Path | None = None,
    method: str | None = None,
    device: str = "cpu",
) -> Moe:
    """Open an MoE checkpoint: a folder with a config.json and safetensors files, or a model id of the hub.

    With `experts`, `path` is the dense base that these folders (or ids) were fine-tuned from: checkpoints, LoRA
    adapters as PEFT saves them, or both; `blend_only="ffn"` takes their FFNs and keeps the rest of the base. A TOML
    file lists base and experts, and may say the rest (`merge/sources/expert_list.py`); arguments go before it. With
    `base` the base is one more expert, the last; that of an MoE is the folder of the dense model it was made from.
    `method` says how blends are merged: a name of `tanbr.merge.methods`, with settings as `ties:density=0.3`; `device`
    where its dense models are built, as cuda.
    """
    source = _source(path, experts, blend_only, base)
    path, *experts = (str(Path(one).absolute()) if Path(one).exists() else str(one) for one in (path, *experts))
    base = str(Path(base).absolute()) if isinstance(base, str | Path) else source.with_base
    source.origin = {"path": path, "experts": experts, "blend_only": blend_only, "base": base}
    return Moe(source, method=source.method or "average" if method is None else method, device=device)


def _source(
    path: str | Path,
    experts: Sequence[str | Path],
    blend_only: BlendOnly | None,
    base: bool | str | Path | None,
) -> ExpertSource:
    if is_list(path):
        if experts:
            raise InputError(f"{path} lists its experts; add {experts[0]} to it instead of naming it beside")
        listed = read_list(path)
    elif experts:
        listed = list_of(path, experts)
    else:
        checkpoint = Checkpoint(_local(path))
        if base is True:
            raise InputError(f"{path} is an MoE checkpoint: name the folder of the dense model that it was made from")
        return MoeOverAncestor(checkpoint, Checkpoint(base)) if base else MoeCheckpoint(checkpoint)
    with_base = listed.with_base if base is None else bool(base)
    folders = [_local(one.path) for one in listed.trained]
    read = [read_adapter(one) if is_adapter(one) else Checkpoint(one) for one in folders]
    source = OverBase(
        Checkpoint(_local(listed.base)),
        read,
        blend_only=blend_only or listed.blend_only,
        labels=[one.labels for one in listed.trained],
        with_base=with_base,
    )
    source.expert_tasks, source.method = listed.tasks, listed.method
    source.weights = listed.weights(with_base=with_base)
    return source


def _local(path: str | Path) -> Path:
    """Find a folder here, or fetch a model id from the hub."""
    if Path(path).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        return Path(path)
    try:
        return Path(snapshot_download(str(path), allow_patterns=FETCHED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{path} is no folder here, and the hub does not give it ({reason})") from None
