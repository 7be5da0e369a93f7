"""What the paper proves, as functions: the threshold, Lemmas 1 and 2, Theorem 1, NTK, effective dimension."""

import numpy as np

from tanbr.errors import InputError
from tanbr.types import FloatArray


def expansion_threshold(
    depth: int, slot: int, *, constant: float = 1.0, nu: float = 1.0, rho: float = 0.5, delta: float = 1.0
) -> float:
    """τ_h(t) = C² log(t/δ) ρ^{−2h} / ν₁², eq. (tau)."""
    return float(constant**2 * np.log(slot / delta) * rho ** (-2.0 * depth) / nu**2)


def depth_bound(slots: int, *, constant: float = 1.0, nu: float = 1.0, rho: float = 0.5, delta: float = 1.0) -> float:
    """Most depth of the tree after T slots: log(T ν₁² / (C² log(T/δ))) / (1 − ρ), the appendix's lemma."""
    return float(np.log(_ratio(slots, constant, nu, delta)) / (1.0 - rho))


def leaves_bound(slots: int, *, constant: float = 1.0, nu: float = 1.0, rho: float = 0.5, delta: float = 1.0) -> float:
    """N, most candidate blends in T slots: 2^{1/(1−ρ)} T ν₁² / (C² log(T/δ)), Lemma 1."""
    return float(2.0 ** (1.0 / (1.0 - rho)) * _ratio(slots, constant, nu, delta))


def _ratio(slots: int, constant: float, nu: float, delta: float) -> float:
    if slots <= delta:
        raise InputError(f"the bounds need more slots than delta (got {slots} and {delta}): log(T/δ) must be above 0")
    return slots * nu**2 / (constant**2 * float(np.log(slots / delta)))


def regret_bound(
    slots: int,
    *,
    effective_dimension: float,
    leaves: float,
    ridge: float = 1.0,
    exploration: float = 1.0,
    delta: float = 0.1,
    norm_bound: float = 1.0,
    layers: int = 2,
    width: int = 64,
    learning_rate: float = 1e-3,
    steps: int = 100,
    constant: float = 1.0,
) -> float:
    """Theorem 1's right-hand side, its bare "+ T + 1" included: as printed, it is not sublinear."""
    shrink = 1.0 - learning_rate * width * ridge
    if not 0.0 <= shrink < 1.0:
        raise InputError(f"Theorem 1 needs learning_rate · width · ridge in (0, 1] (got {1.0 - shrink:.4g})")
    T = float(slots)
    information = effective_dimension * np.log(1.0 + T * leaves / ridge) + 2.0
    bias = (ridge + constant * T * layers) * shrink ** (steps / 2) * np.sqrt(T / ridge)
    inner = exploration * np.sqrt(information - 2.0 * np.log(delta)) + bias + 2.0 * np.sqrt(ridge * norm_bound)
    return float(3.0 * np.sqrt(T) * np.sqrt(information) * inner + T + 1.0)


def neural_tangent_kernel(inputs: FloatArray, *, layers: int = 2) -> FloatArray:
    """M = (H + Σ)/2 over unit inputs (n, K), as the work the paper refers to defines it: (n, n)."""
    tangent, covariance = kernel_limits(inputs, layers=layers)
    return 0.5 * (tangent + covariance)


def kernel_limits(inputs: FloatArray, *, layers: int = 2) -> tuple[FloatArray, FloatArray]:
    """H⁽ᴸ⁾ and Σ⁽ᴸ⁾ of the infinitely wide ReLU network: the limits of gᵀg/w and of its last layer's share in it."""
    covariance = inputs @ inputs.T  # Σ⁽¹⁾
    tangent = covariance.copy()  # H⁽¹⁾
    for _ in range(layers - 1):
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        cosine = np.clip(covariance / scale, -1.0, 1.0)
        angle = np.arccos(cosine)
        slope = (np.pi - angle) / np.pi  # 2 E[σ′(u)σ′(v)]
        covariance = scale * (np.sqrt(1.0 - cosine**2) + (np.pi - angle) * cosine) / np.pi  # 2 E[σ(u)σ(v)]
        tangent = tangent * slope + covariance
    return tangent, covariance


def effective_dimension(kernel: FloatArray, *, ridge: float = 1.0) -> float:
    """d̃ = log det(I + M/λ) / log(1 + n/λ) for the n = TN inputs behind M (Definition 1)."""
    size = len(kernel)
    _, logdet = np.linalg.slogdet(np.eye(size) + kernel / ridge)
    return float(logdet / np.log1p(size / ridge))


def growth_exponent(regret: FloatArray, *, skip: int = 50) -> float:
    """Slope of log R_t over log t: below 1, the summed regret grows more slowly than the slots. (T,)."""
    total = np.cumsum(regret)[skip:]
    slots = np.arange(1, len(regret) + 1)[skip:]
    positive = total > 0
    return float(np.polyfit(np.log(slots[positive]), np.log(total[positive]), 1)[0])
