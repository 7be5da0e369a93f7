from tanbr.lab.rivals import Nucb


def test_nucb_draws_twenty():
    router = Nucb(4, 2)
    assert router.explain(router.ask([0.5, 0.5])).candidates == 20
