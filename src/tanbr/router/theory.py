"""What the paper proves, as functions: the threshold, Lemmas 1 and 2, Theorem 1, NTK, effective dimension."""

import numpy as np

from tanbr.errors import InputError
from tanbr.router.config import PaperModeConfig
from tanbr.types import FloatArray


def expansion_threshold(depth: int, slot: int, config: PaperModeConfig) -> float:
    """τ_h(t) = C² log(t/δ) ρ^{−2h} / ν₁², eq. (tau)."""
    C, delta, rho, nu = config.threshold_constant, config.delta, config.rho, config.nu
    return float(C**2 * np.log(slot / delta) * rho ** (-2.0 * depth) / nu**2)


def depth_bound(slots: int, config: PaperModeConfig) -> float:
    """Most depth of the tree after T slots: log(T ν₁² / (C² log(T/δ))) / (1 − ρ), the appendix's lemma."""
    return float(np.log(_ratio(slots, config)) / (1.0 - config.rho))


def leaves_bound(slots: int, config: PaperModeConfig) -> float:
    """N, most candidate blends in T slots: 2^{1/(1−ρ)} T ν₁² / (C² log(T/δ)), Lemma 1."""
    return float(2.0 ** (1.0 / (1.0 - config.rho)) * _ratio(slots, config))


def _ratio(slots: int, config: PaperModeConfig) -> float:
    if slots <= config.delta:
        raise InputError(
            f"the bounds need more slots than delta (got {slots}, {config.delta}): log(T/δ) must be above 0"
        )
    return slots * config.nu**2 / (config.threshold_constant**2 * float(np.log(slots / config.delta)))


def regret_bound(slots: int, config: PaperModeConfig, *, effective_dimension: float, leaves: float) -> float:
    """Theorem 1's right-hand side with S = C₁ = 1, its bare "+ T + 1" included: as printed, it is not sublinear."""
    shrink = 1.0 - config.learning_rate * config.width * config.ridge
    if not 0.0 <= shrink < 1.0:
        raise InputError(f"Theorem 1 needs learning_rate · width · ridge in (0, 1] (got {1.0 - shrink:.4g})")
    T, lam = float(slots), config.ridge
    information = effective_dimension * np.log(1.0 + T * leaves / lam) + 2.0
    bias = (lam + T * config.layers) * shrink ** (config.steps / 2) * np.sqrt(T / lam)
    inner = config.exploration * np.sqrt(information - 2.0 * np.log(config.delta)) + bias + 2.0 * np.sqrt(lam)
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
