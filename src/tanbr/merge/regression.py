"""Merging by regression: every linear layer answers most like each expert does on that expert's own inputs.

    W(x)ᵀ = (Σ_k x_k G_k + ρI)⁻¹ (Σ_k x_k G_k W_kᵀ + ρW̄ᵀ)        W̄ = Σ_k x_k W_k

minimises Σ_k x_k · mean ‖W u − W_k u‖² over the inputs u that expert k sees; G_k is the mean of u uᵀ, off its diagonal
times 0.9, and ρ, a little of the mean of the diagonal, gives directions that no expert sees the average. The even blend
is RegMean (`baselines/regmean.py` measures the matrices), a one-hot blend the expert itself. The matrices lie in a
checkpoint of their own beside the experts, so that a merge streams them as it streams experts.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import weighted_sum
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import Block, Piece
from tanbr.moe.writing import NewTensor, new_folder, write_json, write_tensors

FOLDER = "grams"
SHRINKAGE = 0.9  # α, what is left of a Gram matrix beside its diagonal
RIDGE = 1e-4  # ρ, relative to the mean of the diagonal


def shrunk(gram: Tensor, shrinkage: float = SHRINKAGE) -> Tensor:
    """Weaken a Gram matrix (in, in) off its diagonal."""
    return shrinkage * gram + (1 - shrinkage) * gram.diagonal().diag()


def solved(left: Tensor, right: Tensor, average: Tensor, *, ridge: float = RIDGE) -> Tensor:
    """Solve a layer's regression: Σ x G (in, in), Σ x G Wᵀ (in, out), the average weight (out, in) to (out, in)."""
    rho = ridge * left.diagonal().mean()
    factor, failed = torch.linalg.cholesky_ex(left + rho * torch.eye(len(left), dtype=left.dtype, device=left.device))
    if failed or not rho > 0:
        raise CheckpointError("the Gram matrices of a layer are not positive definite; measure them anew")
    return torch.cholesky_solve(right + rho * average.to(left).T, factor).T


class Grams:
    """What a checkpoint's experts see at each linear layer; nothing is read before a layer is solved."""

    def __init__(self, path: Path, pieces: Sequence[Piece], *, experts: int, digest: str) -> None:
        folder = path / FOLDER
        if not folder.is_dir():
            raise CheckpointError(
                f"{path} has no Gram matrices of what its experts see; measure them with `tanbr grams`"
            )
        self.checkpoint = Checkpoint(folder)
        named = {_layer(piece): piece.shape for piece in pieces}
        self._layers = {
            layer: shape for layer, shape in named.items() if _name(layer, 0, "left") in self.checkpoint.specs
        }
        self._experts = experts
        wanted = {new.name: new.shape for new in _tensors(self._layers, experts)}
        if (
            self.checkpoint.config.get("model_sha256") != digest
            or not wanted
            or wanted != {name: spec.shape for name, spec in self.checkpoint.specs.items()}
        ):
            raise CheckpointError(f"{folder} was measured with another model than {path}; delete it and measure anew")

    def refine(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Turn the average of a layer's weights in `out` (out, in) into the regression for the same blend (K,)."""
        layer = _layer(piece)
        if layer not in self._layers or sum(weight != 0 for weight in blend) < 2:
            return
        rows, columns = self._layers[layer]
        left, right = torch.empty(columns, columns), torch.empty(columns, rows)
        for total, side in ((left, "left"), (right, "right")):
            blocks: list[Block] = [(_name(layer, k, side), 0) for k in range(self._experts)]
            weighted_sum(total, self.checkpoint, blocks, blend)
        out.copy_(solved(left.to(out.device), right.to(out.device), out))


def write_grams(
    out: Path,
    layers: Mapping[str, tuple[int, int]],
    experts: Iterable[Mapping[str, tuple[Tensor, Tensor]]],
    *,
    count: int,
    digest: str,
    rows: int,
) -> Path:
    """Write the folder `out`: for each of `count` experts, layer → (G, G Wᵀ), one expert in memory at a time.

    `layers` maps names to (out, in); `rows` is how many texts of its own task an expert was shown.
    """
    chunks = (part.float() for of_expert in experts for layer in layers for part in of_expert[layer])
    with new_folder(out) as folder:
        write_json(folder / "config.json", {"model_type": "tanbr_grams", "model_sha256": digest, "rows": rows})
        write_tensors(folder, _tensors(layers, count), chunks)
    return out


def _tensors(layers: Mapping[str, tuple[int, ...]], experts: int) -> list[NewTensor]:
    """List what the folder holds, expert after expert."""
    return [
        NewTensor(_name(layer, k, side), torch.float32, (columns, columns if side == "left" else rows))
        for k in range(experts)
        for layer, (rows, columns) in layers.items()
        for side in ("left", "right")
    ]


def _layer(piece: Piece) -> str:
    return piece.target.removesuffix(".weight")


def _name(layer: str, expert: int, side: str) -> str:
    return f"{layer}.{expert}.{side}"
