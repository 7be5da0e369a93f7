"""Gram matrices of what a checkpoint's experts see, in a checkpoint of their own beside the experts.

For a linear layer and expert k: G_k, the mean of u uᵀ over the inputs u, shrunk off its diagonal. Solving a regression
with whole matrices takes seconds, so what is kept lies in a basis E (in, r) of the layer, an eighth of its directions:

    G_k E (in, r)        Eᵀ(G_k + ρ_k I)E (r, r)        Eᵀ G_k W_kᵀ (r, out)

A merge by regression adds to the average weight the best change within the basis (Galerkin's method). E are the
directions, orthonormal under the mean of the G_k, in which the experts' equations G_k (W_k − W̄)ᵀ at the even average W̄
are largest; with r = in the solution is exact.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import weighted_sum
from tanbr.moe.checkpoint import Checkpoint, TensorSpec
from tanbr.moe.family import Block, Piece
from tanbr.moe.writing import new_folder, write_json, write_tensors

FOLDER = "grams"
SHRINKAGE = 0.9  # α, what is left of a Gram matrix beside its diagonal
RIDGE = 1e-4  # ρ, relative to the mean of the diagonal
PART, LEAST = 8, 64  # a basis holds one in so many of a layer's directions, and as many as this at least
ROUNDS = 4  # of the subspace iteration that finds a basis


def shrunk(gram: Tensor, shrinkage: float = SHRINKAGE) -> Tensor:
    """Weaken a Gram matrix (in, in) off its diagonal."""
    return shrinkage * gram + (1 - shrinkage) * gram.diagonal().diag()


def solved(left: Tensor, right: Tensor, average: Tensor, *, ridge: float = RIDGE) -> Tensor:
    """Solve a layer's regression: Σ x G (in, in), Σ x G Wᵀ (in, out), the average weight (out, in) to (out, in)."""
    rho = ridge * float(left.diagonal().mean())
    return torch.cholesky_solve(torch.add(right, average.to(left).T, alpha=rho), _factor(_ridged(left, rho))).T


def _ridged(left: Tensor, rho: float) -> Tensor:
    ridged = left.clone()
    ridged.diagonal().add_(rho)
    return ridged


def _factor(matrix: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed or not factor.diagonal().min() > 0:
        raise CheckpointError("the Gram matrices of a layer are not positive definite; measure them anew")
    return factor


def reduced(pairs: Sequence[tuple[Tensor, Tensor]], average: Tensor) -> Iterator[Tensor]:
    """Give a layer's basis, then what is kept of each expert's (G, G Wᵀ); `average` (out, in) is of all experts."""
    ridges = [RIDGE * float(left.diagonal().mean()) for left, _ in pairs]
    total = torch.stack([left for left, _ in pairs]).sum(dim=0, dtype=torch.float64)  # (in, in)
    factor = _factor(_ridged(total, sum(ridges)) / len(pairs))
    asked = ((right - left @ average.to(left).T).double() for left, right in pairs)
    scaled = (torch.linalg.solve_triangular(factor, one, upper=False) for one in asked)
    weight = sum(one @ one.T for one in scaled)  # (in, in)
    directions = torch.randn(len(factor), rank(len(factor)), generator=torch.Generator().manual_seed(0)).to(factor)
    for _ in range(ROUNDS):
        directions = torch.linalg.qr(weight @ directions).Q
    basis = torch.linalg.solve_triangular(factor.T, directions, upper=True)  # (in, r)
    yield basis
    for (left, right), rho in zip(pairs, ridges, strict=True):
        seen = left.double() @ basis
        yield from (seen, basis.T @ (seen + rho * basis), basis.T @ right.double())


def rank(columns: int) -> int:
    """Say how many directions the basis of a layer with so many inputs holds."""
    return min(columns, max(LEAST, columns // PART))


class GramMatrices:
    """The matrices of all layers and experts; nothing is read before a layer's sums are asked for."""

    def __init__(self, folder: Path, pieces: Sequence[Piece], *, experts: int, fingerprint: str) -> None:
        self.checkpoint = Checkpoint(folder)
        named = {_layer(piece): piece.shape for piece in pieces}
        self._layers = {layer: shape for layer, shape in named.items() if f"{layer}.basis" in self.checkpoint.specs}
        self._experts = experts
        wanted = {new.name: new.shape for new in _tensors(self._layers, experts)}
        there = {name: spec.shape for name, spec in self.checkpoint.specs.items()}
        if self.checkpoint.config.get("model_sha256") != fingerprint or not wanted or wanted != there:
            raise CheckpointError(f"{folder} was measured with another model or tanbr; delete it and measure anew")

    def add_change(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Add to a layer's average weight `out` (out, in) what regression changes; nothing if it is no linear layer."""
        layer = _layer(piece)
        if layer not in self._layers:
            return
        sums = []
        for side, shape in _sides(*self._layers[layer]).items():
            blocks: list[Block] = [(_name(layer, k, side), 0) for k in range(self._experts)]
            sums.append(torch.empty(shape))
            weighted_sum(sums[-1], self.checkpoint, blocks, weights)
        basis, seen, core, right = (one.to(out.device) for one in (self.checkpoint.tensor(f"{layer}.basis"), *sums))
        average = out.to(basis)
        change = torch.cholesky_solve(torch.addmm(right, seen.T, average.T, alpha=-1), _factor(core))  # (r, out)
        out.copy_(torch.addmm(average, change.T, basis.T))


def write_gram_matrices(
    out: Path,
    layers: Mapping[str, Tensor],
    matrices: Iterable[tuple[Tensor, Tensor]],
    *,
    experts: int,
    fingerprint: str,
    rows: int,
) -> Path:
    """Write the folder `out` from pairs (G, G Wᵀ), one in memory at a time; meanwhile they take disk, whole.

    They come expert after expert, each layer by layer. `layers` holds average weights (out, in); `rows` is how many
    texts an expert was shown.
    """
    shapes = {name: (weight.shape[0], weight.shape[1]) for name, weight in layers.items()}
    facts = {"model_type": "tanbr_grams", "model_sha256": fingerprint, "rows": rows}
    whole = [
        TensorSpec(_name(layer, k, side), torch.float32, (shapes[layer][1], size))
        for k in range(experts)
        for layer in shapes
        for side, size in (("G", shapes[layer][1]), ("GW", shapes[layer][0]))
    ]
    with new_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder) as scratch:
        write_json(Path(scratch) / "config.json", facts)
        write_tensors(Path(scratch), whole, (side.float() for pair in matrices for side in pair))
        kept = Checkpoint(scratch)

        def chunks() -> Iterator[Tensor]:
            for layer, average in layers.items():
                sides = ([kept.tensor(_name(layer, k, side)) for k in range(experts)] for side in ("G", "GW"))
                yield from (part.float() for part in reduced(list(zip(*sides, strict=True)), average.cpu()))

        write_json(folder / "config.json", facts)
        write_tensors(folder, _tensors(shapes, experts), chunks())
    return out


def _tensors(layers: Mapping[str, tuple[int, ...]], experts: int) -> list[TensorSpec]:
    """List what the folder holds, in order."""
    found = []
    for layer, (rows, columns) in layers.items():
        found.append(TensorSpec(f"{layer}.basis", torch.float32, (columns, rank(columns))))
        sides = [(k, *side) for k in range(experts) for side in _sides(rows, columns).items()]
        found += [TensorSpec(_name(layer, k, side), torch.float32, shape) for k, side, shape in sides]
    return found


def _sides(rows: int, columns: int) -> dict[str, tuple[int, int]]:
    """Name what is kept of an expert's layer (out, in), with its shapes."""
    r = rank(columns)
    return {"seen": (columns, r), "core": (r, r), "right": (r, rows)}


def _layer(piece: Piece) -> str:
    return piece.target.removesuffix(".weight")


def _name(layer: str, expert: int, side: str) -> str:
    return f"{layer}.{expert}.{side}"
