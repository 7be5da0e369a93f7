"""The confidence matrix Z_t = λI + Σ g gᵀ/w (line 13) in full or as a diagonal, and the factor γ_t."""

from typing import Protocol

import numpy as np

from tanbr.errors import ConfigError
from tanbr.router.config import PaperModeConfig
from tanbr.router.network import Gradient
from tanbr.state import Arrays
from tanbr.types import FloatArray


class Confidence(Protocol):
    """Z, seen through gᵀZ⁻¹g/w."""

    log_determinant: float  # log(det Z / det λI)

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        ...

    def prepare(self, inputs: FloatArray) -> None:
        """Do now what `squared_width` needs for these inputs (n, K), whatever the mix."""
        ...

    def update(self, gradient: Gradient) -> None:
        """Z += g gᵀ/w for a single gradient."""
        ...

    def snapshot(self) -> Arrays:
        """Everything that changes."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        ...


class DiagonalConfidence:
    """Only the diagonal of Z, one entry per weight; a factored gradient needs no p-vector."""

    def __init__(self, shapes: list[tuple[int, int]], *, ridge: float, width: int) -> None:
        self._ridge, self._width = ridge, width
        self.diagonal = [np.full(shape, ridge) for shape in shapes]
        self._inverse: list[FloatArray] = []
        self._inputs = self._through = np.zeros((0, 0))
        self._refresh()

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        first = gradient.front[0]
        slope = gradient.back[0]
        total = np.vecdot(slope * slope, self._seen_through(first))
        for back, front, inverse in zip(gradient.back[1:], gradient.front[1:], self._inverse[1:], strict=True):
            total += np.vecdot((back * back) @ inverse, front * front)
        return total / self._width

    def prepare(self, inputs: FloatArray) -> None:
        """Do now what `squared_width` needs for these inputs (n, K), whatever the mix."""
        self._seen_through(inputs)

    def _seen_through(self, inputs: FloatArray) -> FloatArray:
        """Σ_j x_j²/Z_ij of the first layer, kept while the same inputs are scored again: (n, w)."""
        if inputs is not self._inputs:
            self._inputs, self._through = inputs, (inputs * inputs) @ self._inverse[0].T
        return self._through

    def update(self, gradient: Gradient) -> None:
        """Z += g gᵀ/w for a single gradient."""
        for layer, back, front in zip(self.diagonal, gradient.back, gradient.front, strict=True):
            layer += np.outer(back[0] ** 2, front[0] ** 2) / self._width
        self._refresh()

    def _refresh(self) -> None:
        self._inputs = self._through = np.zeros((0, 0))
        self._inverse = [1.0 / layer for layer in self.diagonal]
        self.log_determinant = float(sum(np.log(layer / self._ridge).sum() for layer in self.diagonal))

    def snapshot(self) -> Arrays:
        """One array per layer."""
        return {f"diagonal.{i}": layer for i, layer in enumerate(self.diagonal)}

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        self.diagonal = [arrays[f"diagonal.{i}"].copy() for i in range(len(self.diagonal))]
        self._refresh()


class ExactConfidence:
    """All of Z⁻¹: through the t × t matrix of inner products while t < p (dual), as a p × p matrix after (primal)."""

    def __init__(self, shapes: list[tuple[int, int]], *, ridge: float, width: int) -> None:
        self._shapes, self._ridge, self._width = shapes, ridge, width
        self.parameters = sum(rows * columns for rows, columns in shapes)  # p
        self.log_determinant = 0.0
        self.told = Gradient([np.zeros((0, r)) for r, _ in shapes], [np.zeros((0, c)) for _, c in shapes])
        self.dual = np.zeros((0, 0))  # (λwI + GGᵀ)⁻¹ (t, t)
        self.primal: FloatArray | None = None  # Z⁻¹ (p, p)

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        if self.primal is not None:
            dense = gradient.dense()
            return np.asarray(np.einsum("np,np->n", dense @ self.primal, dense) / self._width)
        own = np.asarray(
            sum((b * b).sum(axis=1) * (f * f).sum(axis=1) for b, f in zip(gradient.back, gradient.front, strict=True))
        )
        cross = gradient.inner(self.told)  # (n, t)
        seen = np.einsum("nt,nt->n", cross @ self.dual, cross)
        return np.asarray(np.maximum(own - seen, 0.0) / (self._ridge * self._width))

    def prepare(self, inputs: FloatArray) -> None:
        """Nothing can be done before the gradient is known."""

    def update(self, gradient: Gradient) -> None:
        """Z += g gᵀ/w for a single gradient."""
        squared = float(self.squared_width(gradient)[0])
        self.log_determinant += float(np.log1p(squared))
        if self.primal is not None:
            turned = self.primal @ gradient.dense()[0]
            self.primal -= np.outer(turned, turned) / (self._width * (1.0 + squared))
            return
        solved = self.dual @ gradient.inner(self.told)[0]  # (t,)
        left = 1.0 / (self._ridge * self._width * (1.0 + squared))  # Schur complement of the new row
        corner = -left * solved
        self.dual = np.block([[self.dual + left * np.outer(solved, solved), corner[:, None]], [corner[None], left]])
        for kept, new in ((self.told.back, gradient.back), (self.told.front, gradient.front)):
            kept[:] = [np.concatenate([rows, row[:1]]) for rows, row in zip(kept, new, strict=True)]
        if len(self.dual) >= self.parameters:
            dense = self.told.dense()
            self.primal = (np.eye(self.parameters) - dense.T @ self.dual @ dense) / self._ridge

    def snapshot(self) -> Arrays:
        """Return the form in use."""
        arrays: Arrays = {"log_determinant": np.array(self.log_determinant)}
        if self.primal is not None:
            return {**arrays, "primal": self.primal}
        for i, (back, front) in enumerate(zip(self.told.back, self.told.front, strict=True)):
            arrays |= {f"back.{i}": back, f"front.{i}": front}
        return {**arrays, "dual": self.dual}

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        self.log_determinant = float(arrays["log_determinant"])
        if "primal" in arrays:
            self.primal = arrays["primal"].copy()
            return
        self.dual = arrays["dual"].copy()
        layers = range(len(self._shapes))
        self.told = Gradient([arrays[f"back.{i}"] for i in layers], [arrays[f"front.{i}"] for i in layers])


def theory_gamma(slot: int, log_determinant: float, config: PaperModeConfig) -> float:
    """γ_t as printed below eq. (u_node); it needs ηwλ ≤ 1."""
    w, L, lam, eta, J = config.width, config.layers, config.ridge, config.learning_rate, config.steps
    c1, c2, c3 = config.gamma_constants
    shrink = 1.0 - eta * w * lam
    if shrink < 0:
        raise ConfigError(
            f'gamma = "theory" needs learning_rate · width · ridge ≤ 1 (got {eta * w * lam:.4g}); '
            f'take a learning_rate of at most {1 / (w * lam):.3g}, or gamma = "constant"'
        )
    t, thin = float(slot), w ** (-1 / 6) * np.sqrt(np.log(w))
    outer = np.sqrt(1.0 + c1 * thin * L**4 * t ** (7 / 6) * lam ** (-7 / 6))
    inner = log_determinant + c2 * thin * L**4 * t ** (5 / 3) * lam ** (-1 / 6) - 2.0 * np.log(config.delta)
    bias = shrink ** (J / 2) * np.sqrt(t / lam)
    bias += thin * L ** (7 / 2) * t ** (5 / 3) * lam ** (-5 / 3) * (1.0 + np.sqrt(t / lam))
    width = config.exploration * np.sqrt(inner) + np.sqrt(lam) * config.norm_bound
    return float(outer * width + (lam + c3 * t * L) * bias)
