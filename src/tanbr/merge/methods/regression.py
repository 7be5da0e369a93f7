"""Merging by regression: every linear layer answers most like each expert does on that expert's own inputs.

    W(x)ᵀ = (Σ_k x_k G_k + ρI)⁻¹ (Σ_k x_k G_k W_kᵀ + ρW̄ᵀ)        W̄ = Σ_k x_k W_k

minimises Σ_k x_k · mean ‖W u − W_k u‖² over the inputs u that expert k sees; G_k is the mean of u uᵀ, off its diagonal
times 0.9, and ρ, a little of the mean of the diagonal, gives directions that no expert sees the average. The even blend
is RegMean (Jin et al., ICLR 2023; `lab/rivals/regmean.py` measures the matrices), a one-hot blend the expert itself.

The system is solved in a basis of an eighth of the layer's inputs, for the change W(x) − W̄: `merge/gram_matrices.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.gram_matrices import FOLDER, GramMatrices
from tanbr.merge.methods.method import Method
from tanbr.moe.checkpoint import TensorFile
from tanbr.moe.family import Piece


@dataclass(eq=False)
class Regression(Method):
    """Regression on what each expert sees when it runs alone; biases, and what is no linear layer, are averaged."""

    name = "regression"

    def __post_init__(self) -> None:
        experts = self.experts
        place = experts.beside(FOLDER)
        if not place.is_dir():
            raise CheckpointError(
                f"{place.parent} lacks what merging by regression needs, Gram matrices of what the experts see: "
                "`tanbr survey CHECKPOINT --grams regression`"
            )
        self._matrices = GramMatrices(
            place, experts.blended, experts=experts.count, fingerprint=experts.checkpoint.fingerprint
        )

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Average, then add what the layer's regression changes for the same blend; one expert alone stays itself."""
        self.experts.average(out, piece, blend)
        if sum(weight != 0 for weight in blend) > 1:
            self._matrices.add_change(out, piece, blend)

    @property
    def files(self) -> list[TensorFile]:
        """The matrices' files."""
        return self._matrices.checkpoint.files

    @property
    def facts(self) -> dict[str, Any]:
        """How many texts of its own an expert was shown."""
        return {"grams": self._matrices.checkpoint.config["rows"]}
