import pytest

from serve.serving import TEXTS, Run
from tanbr.errors import InputError
from tanbr.serve.records import Feedback
from tanbr.serve.service import Service


def test_rewards_and_scored_labels_are_on_disk_and_strangers_are_not(live: Service) -> None:
    answered = live.submit(TEXTS[:2], task="sentiment").result(30)
    one, two = answered.request_ids
    unheard = live.ids.show(live.ids.issue(0, 1)[0])  # nobody knows what was answered
    best = live.info.columns[answered.logits[1, : live.info.classes].argmax()]
    taken = live.feedback(
        [
            Feedback(one, reward=0.5),
            Feedback(two, task="sentiment", label="positive"),
            Feedback(unheard, task="sentiment", label="positive"),
            Feedback("nonsense", reward=1.0),
            Feedback(one, reward=1.0),
        ],
        client="me",
    )
    assert taken.outcomes == ("accepted", "accepted", "unknown", "unknown", "repeated")
    kept = [
        (live.ids.show(row.id), row.source, row.task, row.reward, row.client) for row in live.store.feedback(after=0)
    ]
    scored = float(best == "positive")
    assert kept == [(one, "feedback", None, 0.5, "me"), (two, "labels", 6, scored, "me")]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"reward": 1.5}, r"must lie in \[0, 1\]"),
        ({"reward": float("nan")}, r"must lie in \[0, 1\]"),
        ({"reward": 1.0, "task": "sport"}, "unknown task 'sport'; this server knows acceptability"),
        ({}, "either a reward or a label"),
        ({"label": "positive"}, "a label needs its task"),
        ({"label": "film", "task": "sentiment"}, "film"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_taken_in(live: Service, item, says) -> None:
    first, second = live.submit(TEXTS[:2]).result(30).request_ids
    with pytest.raises(InputError, match=says):
        live.feedback([Feedback(first, reward=1.0), Feedback(second, **item)])
    assert not live.store.feedback(after=0)


def test_where_labels_do_not_count_only_rewards_are_taken(run: Run) -> None:
    with pytest.raises(InputError, match="scores no labels; send a reward"):
        run(rewards={"labels": 0.0}).feedback([Feedback("x", task="sentiment", label="positive")])
