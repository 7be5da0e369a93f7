import pytest

from tanbr.lab.tasks import tiny, world

NAMES = [task.name for task in tiny.TASKS]


def words(row: tiny.Row) -> list[str]:
    return " ".join([row.text] if isinstance(row.text, str) else row.text).split()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_rows_and_another_gives_others(name: str) -> None:
    rows = tiny.generate(name, 200, seed=7)
    assert rows == tiny.generate(name, 200, seed=7)
    assert rows[:50] == tiny.generate(name, 50, seed=7)
    assert len({row.text for row in rows} & {row.text for row in tiny.generate(name, 200, seed=8)}) < 20


@pytest.mark.parametrize("name", NAMES)
def test_train_and_test_never_share_a_text(name: str) -> None:
    train = {row.text for row in tiny.generate(name, 3_000, seed=1, split="train")}
    test = {row.text for row in tiny.generate(name, 3_000, seed=1, split="test")}
    assert not train & test
    assert len(train) > 2_500  # few repeats: the grammar is large


def test_every_word_is_known_to_the_vocabulary() -> None:
    known = set(tiny.vocabulary())
    assert 300 < len(known) < 600
    for name in NAMES:
        for split in ("train", "test"):
            assert not {word for row in tiny.generate(name, 2_000, seed=99, split=split) for word in words(row)} - known


def rightly_positive(text: object) -> bool:
    """Read a review: the clause after "but", or the one that is not conceded, decides."""
    deciding = str(text).split(" but ")[-1].split(" although ")[0].split(" and ")[0]
    negated = any(f" {negator} " in deciding for negator in world.NEGATORS)
    return (deciding.split()[-1] in world.POSITIVE) != negated


def test_labels_follow_the_rules_of_their_task_but_for_some_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tiny.generate("sentiment", 4_000, seed=5)
    wrong = sum(row.target != rightly_positive(row.text) for row in rows) / len(rows)
    assert 0.3 * tiny.NOISE < wrong < tiny.NOISE  # half of the redrawn labels are right by chance
    monkeypatch.setattr(tiny, "NOISE", 0.0)
    assert all(row.target == rightly_positive(row.text) for row in tiny.generate("sentiment", 300, seed=0))
    for row in tiny.generate("similarity", 300, seed=0):
        first, second = ({world.meaning(word) for word in text.split()} for text in row.text)
        assert (row.target == 5.0) == (first - {"a", "an"} == second - {"a", "an"})
