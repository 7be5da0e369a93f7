"""Streaming weighted sums: blocks of a mapped checkpoint into tensors that exist already.

Only blocks of non-zero weight are read, each once, and nothing but a small scratch is allocated. Experts at equal
distances in their file (every layout in use) are one strided matrix, and their sum a batch of small matrix products,
which runs at the speed of memory. Half types are widened chunk by chunk and summed in float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import Block

BLOCK = 4096  # columns of one product: r rows of it and its sum stay in the first cache, threads take turns
WIDENED = 1 << 16  # elements of a half type that are widened at a time: r rows of it stay in the second cache


def weighted_sum(out: Tensor, checkpoint: Checkpoint, blocks: Sequence[Block], weights: Sequence[float]) -> None:
    """Set out = Σ_k weights[k]·blocks[k], accumulated in float32 or better."""
    active = [(block, weight) for block, weight in zip(blocks, weights, strict=True) if weight != 0.0]
    if not active:
        out.zero_()
        return
    dtype = checkpoint.specs[blocks[0][0]].dtype
    count = out.numel()
    if len(active) == 1 and active[0][1] == 1.0:
        out.copy_(checkpoint.blocks([active[0][0]], count)[0].view(out.shape))  # bit for bit
        return
    wide = torch.promote_types(dtype, torch.float32)
    runs = [
        (checkpoint.blocks([block for block, _ in run], count), torch.tensor([weight for _, weight in run], dtype=wide))
        for run in progressions(checkpoint, active)
    ]
    direct = out.dtype == dtype == wide and out.is_contiguous() and out.device.type == "cpu"
    if direct:
        _accumulate(out.view(-1), runs)
        return
    # Chunks are of the flat tensor, or of whole rows where `out` is a region of a wider one.
    target = out.view(-1, 1) if out.is_contiguous() else out.view(-1, out.shape[-1])  # (rows, width)
    width = target.shape[1]
    step = max(1, WIDENED // width)
    for start in range(0, target.shape[0], step):
        region = target[start : start + step]
        flat = slice(start * width, start * width + region.numel())
        chunks = [(rows[:, flat].to(wide), column) for rows, column in runs]
        total = torch.empty(region.numel(), dtype=wide)
        _accumulate(total, chunks)
        region.copy_(total.view(region.shape))


def _accumulate(out: Tensor, runs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Sum runs of rows (r, count) with weights (r,) into out (count,), as a batch of products (1, r) × (r, BLOCK)."""
    batch = out.numel() // BLOCK
    whole = batch * BLOCK
    blocks, rest = out[:whole].view(batch, 1, BLOCK), out[whole:]
    for number, (rows, weights) in enumerate(runs):
        row = weights.expand(batch, 1, -1)
        columns = rows[:, :whole].view(len(rows), batch, BLOCK).transpose(0, 1)
        if number:
            blocks.baddbmm_(row, columns)
            rest.addmv_(rows[:, whole:].T, weights)
        else:
            torch.bmm(row, columns, out=blocks)
            torch.mv(rows[:, whole:].T, weights, out=rest)


def progressions(checkpoint: Checkpoint, active: Sequence[tuple[Block, float]]) -> list[list[tuple[Block, float]]]:
    """Cut weighted blocks into runs that lie in one file, at equal distances, in the order of the file."""
    placed = sorted(((checkpoint.address(*block), block, weight) for block, weight in active), key=lambda item: item[0])
    runs: list[list[tuple[tuple[int, int], Block, float]]] = []
    for item in placed:
        run = runs[-1] if runs else []
        same_file = bool(run) and run[-1][0][0] == item[0][0]
        if same_file and (len(run) == 1 or item[0][1] - run[-1][0][1] == run[1][0][1] - run[0][0][1]):
            run.append(item)
        else:
            runs.append([item])
    return [[(block, weight) for _, block, weight in run] for run in runs]


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor of weights holds neither NaN nor infinity."""
    # The sum of finite weights is finite in float32, and a sum is the fastest way to see each of them.
    return bool(torch.isfinite(tensor.detach().sum(dtype=torch.float32)))


def finite(name: str, tensor: Tensor) -> Tensor:
    """Refuse a merged tensor that holds NaN or infinity."""
    if not is_finite(tensor):
        raise CheckpointError(f"the merge of {name} holds NaN or infinity; restore the checkpoint")
    return tensor
