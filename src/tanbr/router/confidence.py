"""The confidence matrix Z_t = λI + Σ g gᵀ/w (line 13) in full or as a diagonal, and the factor γ_t."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from tanbr.errors import ConfigError
from tanbr.router.config import PaperModeConfig
from tanbr.router.network import Gradient
from tanbr.types import FloatArray


class Confidence(Protocol):
    """Z, seen through gᵀZ⁻¹g/w; a value, so that an update makes a new one."""

    @property
    def log_determinant(self) -> float:
        """log(det Z / det λI)."""
        ...

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        ...

    def updated(self, gradient: Gradient) -> Self:
        """Z + g gᵀ/w for a single gradient."""
        ...


@dataclass(frozen=True, eq=False)
class DiagonalConfidence:
    """Only the diagonal of Z, one entry per weight; a factored gradient needs no p-vector."""

    diagonal: tuple[FloatArray, ...]  # L arrays of the shapes of θ
    ridge: float  # λ
    width: int  # w

    @classmethod
    def start(cls, shapes: list[tuple[int, ...]], *, ridge: float, width: int) -> "DiagonalConfidence":
        """Z_0 = λI."""
        return cls(tuple(np.full(shape, ridge) for shape in shapes), ridge, width)

    @property
    def log_determinant(self) -> float:
        """log(det Z / det λI)."""
        return float(sum(np.log(layer / self.ridge).sum() for layer in self.diagonal))

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        total: FloatArray | float = 0.0
        for layer, (back, front) in enumerate(zip(gradient.back, gradient.front, strict=True)):
            inverse = 1.0 / self.diagonal[layer]
            if layer == 0:  # back has n rows, front K columns
                total = np.vecdot(back * back, (front * front) @ inverse.T)
            else:
                total += np.vecdot((back * back) @ inverse, front * front)
        return np.asarray(total / self.width)

    def updated(self, gradient: Gradient) -> "DiagonalConfidence":
        """Z + g gᵀ/w for a single gradient."""
        squared = (np.outer(b[0] ** 2, f[0] ** 2) for b, f in zip(gradient.back, gradient.front, strict=True))
        more = (layer + new / self.width for layer, new in zip(self.diagonal, squared, strict=True))
        return replace(self, diagonal=tuple(more))


@dataclass(frozen=True, eq=False)
class ExactConfidence:
    """All of Z⁻¹: through the t × t matrix of inner products while t < p (dual), as a p × p matrix after (primal)."""

    back: tuple[FloatArray, ...]  # L arrays (t, rows of θ_l): the gradients told, factored
    front: tuple[FloatArray, ...]  # L arrays (t, columns of θ_l)
    dual: FloatArray  # (λwI + GGᵀ)⁻¹ (t, t)
    primal: FloatArray  # Z⁻¹ (p, p) once t = p, else (0, 0)
    log_determinant: float  # log(det Z / det λI)
    ridge: float  # λ
    width: int  # w

    @classmethod
    def start(cls, shapes: list[tuple[int, ...]], *, ridge: float, width: int) -> "ExactConfidence":
        """Z_0 = λI."""
        back = tuple(np.zeros((0, rows)) for rows, _ in shapes)
        front = tuple(np.zeros((0, columns)) for _, columns in shapes)
        return cls(back, front, np.zeros((0, 0)), np.zeros((0, 0)), 0.0, ridge, width)

    @property
    def parameters(self) -> int:
        """The number of weights, p."""
        return sum(b.shape[1] * f.shape[1] for b, f in zip(self.back, self.front, strict=True))

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        if self.primal.size:
            dense = gradient.dense()
            return np.asarray(np.einsum("np,np->n", dense @ self.primal, dense) / self.width)
        own = np.asarray(
            sum((b * b).sum(axis=1) * (f * f).sum(axis=1) for b, f in zip(gradient.back, gradient.front, strict=True))
        )
        cross = gradient.inner(self._told)  # (n, t)
        seen = np.einsum("nt,nt->n", cross @ self.dual, cross)
        return np.asarray(np.maximum(own - seen, 0.0) / (self.ridge * self.width))

    def updated(self, gradient: Gradient) -> "ExactConfidence":
        """Z + g gᵀ/w for a single gradient."""
        squared = float(self.squared_width(gradient)[0])
        grown = replace(self, log_determinant=self.log_determinant + float(np.log1p(squared)))
        if self.primal.size:
            turned = self.primal @ gradient.dense()[0]
            return replace(grown, primal=self.primal - np.outer(turned, turned) / (self.width * (1.0 + squared)))
        solved = self.dual @ gradient.inner(self._told)[0]  # (t,)
        left = 1.0 / (self.ridge * self.width * (1.0 + squared))  # Schur complement of the new row
        corner = -left * solved
        grown = replace(
            grown,
            dual=np.block([[self.dual + left * np.outer(solved, solved), corner[:, None]], [corner[None], left]]),
            back=tuple(np.concatenate([rows, row[:1]]) for rows, row in zip(self.back, gradient.back, strict=True)),
            front=tuple(np.concatenate([rows, row[:1]]) for rows, row in zip(self.front, gradient.front, strict=True)),
        )
        return grown if len(grown.dual) < self.parameters else grown._turned()

    def _turned(self) -> "ExactConfidence":
        """Go on with the p × p matrix; the gradients are not needed any more."""
        dense = self._told.dense()
        primal = (np.eye(self.parameters) - dense.T @ self.dual @ dense) / self.ridge
        none = [tuple(rows[:0] for rows in factor) for factor in (self.back, self.front)]
        return replace(self, back=none[0], front=none[1], dual=self.dual[:0, :0], primal=primal)

    @property
    def _told(self) -> Gradient:
        return Gradient(list(self.back), list(self.front))


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
