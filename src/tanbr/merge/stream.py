"""The one merge loop: it fills the tensors of a plan, one after the other.

The tensors go to a running model, a new checkpoint, memory that processes share, or an engine. A caller that has a
place for a tensor names it, and the merge writes there and nowhere else; otherwise the tensor is new.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import is_finite, weighted_sum
from tanbr.merge.methods import Method
from tanbr.merge.skeleton import DensePlan
from tanbr.moe.checkpoint import Checkpoint

Places: TypeAlias = Callable[[str], Tensor]  # the name of a dense tensor → where it is to be written


def stream(
    plan: DensePlan,
    checkpoint: Checkpoint,
    method: Method,
    blend: Sequence[float],
    *,
    into: Places | None = None,
    changing: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor of the dense model (only those that change with the blend if `changing`) when it is written.

    All places are asked for before anything is written, so that a model that lacks one stays as it was.
    """
    targets = plan.targets(changing=changing)
    places = None if into is None else {target: into(target) for target in targets}
    if places is None:  # a new tensor is filled whole, also where no blend changes it
        whole = plan.targets()
        targets = {target: whole[target] for target in targets}
    dtypes = plan.dtypes(checkpoint)
    for target, pieces in targets.items():
        out = torch.empty(plan.shapes[target], dtype=dtypes[target]) if places is None else places[target]
        with torch.no_grad():  # around the writing alone: the caller may need gradients between two tensors
            if target in plan.padded and (places is None or not changing):
                out.zero_()
            for piece in pieces:
                region = out[piece.region]
                if piece.weights is None:
                    method.fill(region, piece, blend)
                else:
                    weights = [weight * piece.scale for weight in piece.weights]
                    weighted_sum(region, checkpoint, piece.blocks, weights)
        yield target, out


def finite(name: str, tensor: Tensor) -> Tensor:
    """Refuse a merged tensor that holds NaN or infinity."""
    if not is_finite(tensor):
        raise CheckpointError(f"the merge of {name} holds NaN or infinity; restore the checkpoint")
    return tensor
