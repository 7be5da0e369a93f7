"""Gram matrices of what a checkpoint's experts see, in a checkpoint of their own beside the experts.

For every linear layer and expert k: G_k, the mean of u uᵀ over the inputs u, shrunk off its diagonal, and G_k W_kᵀ. A
merge by regression streams their weighted sums as it streams experts.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import weighted_sum
from tanbr.moe.checkpoint import Checkpoint, TensorSpec
from tanbr.moe.family import Block, Piece
from tanbr.moe.writing import new_folder, write_json, write_tensors

FOLDER = "grams"  # what experts see alone
FOLDER_MERGED = "grams-merged"  # what they see behind layers that are merged already
SHRINKAGE = 0.9  # α, what is left of a Gram matrix beside its diagonal
RIDGE = 1e-4  # ρ, relative to the mean of the diagonal


def shrunk(gram: Tensor, shrinkage: float = SHRINKAGE) -> Tensor:
    """Weaken a Gram matrix (in, in) off its diagonal."""
    return shrinkage * gram + (1 - shrinkage) * gram.diagonal().diag()


def solved(left: Tensor, right: Tensor, average: Tensor, *, ridge: float = RIDGE) -> Tensor:
    """Solve a layer's regression: Σ x G (in, in), Σ x G Wᵀ (in, out), the average weight (out, in) to (out, in)."""
    rho = ridge * float(left.diagonal().mean())
    ridged = left.clone()
    ridged.diagonal().add_(rho)
    factor, failed = torch.linalg.cholesky_ex(ridged)
    if failed or not rho > 0:
        raise CheckpointError("the Gram matrices of a layer are not positive definite; measure them anew")
    return torch.cholesky_solve(torch.add(right, average.to(left).T, alpha=rho), factor).T


class GramMatrices:
    """The matrices of all layers and experts; nothing is read before a layer's sums are asked for."""

    def __init__(self, folder: Path, pieces: Sequence[Piece], *, experts: int, fingerprint: str) -> None:
        self.checkpoint = Checkpoint(folder)
        named = {_layer(piece): piece.shape for piece in pieces}
        self._layers = {
            layer: shape for layer, shape in named.items() if _name(layer, 0, "left") in self.checkpoint.specs
        }
        self._experts = experts
        wanted = {new.name: new.shape for new in _tensors(self._layers, experts)}
        if (
            self.checkpoint.config.get("model_sha256") != fingerprint
            or not wanted
            or wanted != {name: spec.shape for name, spec in self.checkpoint.specs.items()}
        ):
            raise CheckpointError(f"{folder} was measured with another model; delete it and measure anew")

    def sums(self, piece: Piece, weights: Sequence[float]) -> tuple[Tensor, Tensor] | None:
        """Sum Σ w_k G_k (in, in) and Σ w_k G_k W_kᵀ (in, out) of a piece's layer; None if it is no linear layer."""
        layer = _layer(piece)
        if layer not in self._layers:
            return None
        rows, columns = self._layers[layer]
        left, right = torch.empty(columns, columns), torch.empty(columns, rows)
        for total, side in ((left, "left"), (right, "right")):
            blocks: list[Block] = [(_name(layer, k, side), 0) for k in range(self._experts)]
            weighted_sum(total, self.checkpoint, blocks, weights)
        return left, right


def write_gram_matrices(
    out: Path,
    layers: Mapping[str, tuple[int, int]],
    matrices: Iterable[tuple[Tensor, Tensor]],
    *,
    experts: int,
    by_layer: bool = False,
    fingerprint: str,
    rows: int,
) -> Path:
    """Write the folder `out` from pairs (G, G Wᵀ), of which one is in memory at a time.

    They come expert after expert, each layer by layer, or with `by_layer` the other way round. `layers` maps names to
    (out, in); `rows` is how many texts of its own task an expert was shown.
    """
    chunks = (side.float() for pair in matrices for side in pair)
    with new_folder(out) as folder:
        write_json(folder / "config.json", {"model_type": "tanbr_grams", "model_sha256": fingerprint, "rows": rows})
        write_tensors(folder, _tensors(layers, experts, by_layer=by_layer), chunks)
    return out


def _tensors(layers: Mapping[str, tuple[int, ...]], experts: int, *, by_layer: bool = False) -> list[TensorSpec]:
    """List what the folder holds, in order."""
    pairs = [(layer, k) for k in range(experts) for layer in layers]
    if by_layer:
        pairs = [(layer, k) for layer in layers for k in range(experts)]
    return [
        TensorSpec(_name(layer, k, side), torch.float32, (columns, columns if side == "left" else rows))
        for layer, k in pairs
        for rows, columns in [layers[layer]]
        for side in ("left", "right")
    ]


def _layer(piece: Piece) -> str:
    return piece.target.removesuffix(".weight")


def _name(layer: str, expert: int, side: str) -> str:
    return f"{layer}.{expert}.{side}"
