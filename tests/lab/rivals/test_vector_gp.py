import numpy as np
import pytest

from tanbr.lab.rivals import VectorGP
from tanbr.lab.rivals.vector_gp import BETA, CENTRE, NOISE, VARIANCE, covariance
from tanbr.router.simplex import first_best


def test_the_choice_is_that_of_the_textbooks_posterior():
    """Among the candidates, rebuilt from the same seed, by plain matrix inversion."""
    rng = np.random.default_rng(0)
    blends, rewards, mix = rng.dirichlet(np.ones(3), 6), rng.random((6, 2)), np.array([0.7, 0.3])
    drawn = np.random.default_rng(0).dirichlet(np.full(3, 0.5), size=996)
    candidates = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), drawn])
    inverse = np.linalg.inv(covariance(blends, blends) + NOISE**2 * np.eye(6))
    cross = covariance(candidates, blends)
    mean = CENTRE + cross @ inverse @ (rewards - CENTRE) @ mix
    gain = np.einsum("nt,nt->n", cross @ inverse, cross)
    bound = mean + BETA * np.sqrt((VARIANCE - gain) * (mix @ mix))

    router = VectorGP(3, 2, seed=0)
    router.warm_start(blends, rewards)
    decision = router.ask(mix)
    terms = router.explain(decision)
    assert np.array_equal(decision.blend, candidates[first_best(bound)])
    assert terms.mean == pytest.approx(mean[first_best(bound)], abs=1e-9)
    assert terms.bound == pytest.approx(bound.max(), abs=1e-9)
