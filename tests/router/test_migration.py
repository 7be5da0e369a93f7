import numpy as np
from tanbr.router.migration import LAYOUT, migrated


def test_todays_states_are_left_alone() -> None:
    policy = {"numbers": np.arange(3.0)}
    assert migrated(policy, {"ledger.slots": np.zeros(())}, LAYOUT) == policy


def test_a_router_from_before_the_accounts_has_an_empty_ledger() -> None:
    like = {"ledger.slots": np.zeros((), dtype=np.int64), "told": np.ones(())}
    assert migrated({"told": np.full((), 7.0)}, like, 2) == {"ledger.slots": 0, "told": 7.0}


def test_a_router_from_before_the_watch_has_seen_nothing_and_watches_once_it_had_fitted() -> None:
    none = np.zeros((), dtype=np.int64)
    like = {"watch.evidence": np.zeros(2), "since": none, "fitted": none, "slots": none, "learned": np.zeros(())}
    for slots, fitted in ((79, 0), (500, 500)):
        new = migrated({"slots": np.full((), slots), "told": np.full((), 7.5)}, like, 3)
        assert (int(new["since"]), int(new["fitted"]), float(new["learned"])) == (slots, fitted, 7.5)
        assert not new["watch.evidence"].any()


def test_a_router_from_before_the_lift_was_fitted_has_what_was_expected_of_it() -> None:
    like = {"posterior.lift": np.full((), 0.4), "told": np.ones(())}
    assert migrated({"told": np.full((), 7.0)}, like, 4) == {"posterior.lift": 0.4, "told": 7.0}


def test_the_default_routers_numbers_get_names() -> None:
    old = {
        "numbers": np.array([4.0, 5.0, 2.5]),
        "posterior.fit": np.array([0.1, 0.2, 0.3, 0.4]),
        "posterior.norms": np.zeros(2),
        "posterior.arms": np.eye(2),
    }
    new = migrated(old, {}, 1)
    assert new.keys() == {
        "posterior.arms", "posterior.width", "posterior.noise", "posterior.variance", "posterior.correlation",
        "slots", "asked", "told",
    }  # fmt: skip
    assert (int(new["slots"]), int(new["asked"]), float(new["told"])) == (4, 5, 2.5)
    assert new["slots"].dtype == np.int64
    assert float(new["posterior.correlation"]) == 0.4
    assert "posterior.fit" in old  # what was given stays as it was


def test_algorithm_1_keeps_its_tree_and_nucb_loses_it() -> None:
    old = {"numbers": np.array([4.0, 0.5]), "tree.depth": np.zeros(3), "weights": np.ones(2)}
    paper = migrated(old, {"belief.weights": np.zeros(2), "belief.Z.sum": np.ones(1)}, 1)
    assert paper.keys() == {"belief.weights", "tree.depth", "belief.t", "belief.rate", "belief.Z.sum"}
    assert int(paper["belief.t"]) == 4
    assert migrated(old, {"Z.sum": np.ones(1)}, 1).keys() == {"weights", "t", "rate", "Z.sum"}
