import pytest

from tanbr.errors import CheckpointError
from tanbr.lab.tasks import tiny
from tanbr.moe import embedded
from tanbr.tasks.card import FILE, Card, read_card, write_card
from tanbr.tasks.rows import Task


def test_a_card_comes_back_as_it_was_written(tmp_path):
    tasks = Task("a", ("accuracy",), ("no", "yes")), Task("b", ("pearson",), scale=(0.0, 5.0), pair=True)
    card = Card(tasks, ("b", "a"))
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert card.experts_of(["a", "b"]) == (1, 0)
    assert card.experts_of(["a", "c"]) == ()
    assert read_card(tmp_path / "elsewhere") == Card()


def test_the_embedded_model_has_one():
    card = read_card(embedded.path())
    assert card.tasks == tiny.TASKS
    assert sorted(card.experts_of([task.name for task in tiny.TASKS])) == list(range(8))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "nonsense", '{"tasks": 3}', '{"tasks": [{"name": 1}]}', '{"expert_tasks": ["a", "a"]}', "[" * 100_000],
)
def test_a_spoilt_card_is_refused_with_a_sentence(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"tanbr\.json"):
        read_card(tmp_path)


def test_experts_that_were_named_beside_a_card_bring_tasks_and_labels() -> None:
    known = Task("mood", ("f1",), ("sad", "glad"))
    card = Card((known,), ("mood",)).of_experts(("post", "mood"), (("spam", "ham"), ("no", "yes")))
    assert card.expert_tasks == ("post", "mood")
    assert card.tasks == (Task("post", ("accuracy",), ("spam", "ham")), known)  # what a card says goes before a head
    assert Card((known,)).of_experts((), ()) == Card((known,))
    assert Card().of_experts(("a", "b"), ()).tasks == (Task("a", ()), Task("b", ()))
