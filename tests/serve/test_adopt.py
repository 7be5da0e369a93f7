"""A state that goes on with other experts and tasks: by their names and contents, and never in part."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tanbr
from tanbr.errors import OutputError, StateError
from tanbr.lab.settings import parse
from tanbr.lab.tasks import tiny
from tanbr.router import Tanbr
from tanbr.serve.build import build
from tanbr.serve.records import Feedback
from tanbr.serve.service import Service
from tanbr.serve.store import peek
from tanbr.tasks.card import read_card
from tanbr.types import FloatArray

CONFIG = parse(
    {"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always", "practice": 0, "rewards": {"settle_slots": 0}}}
)
Make = Callable[..., Service]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and four experts, each in a folder that its task names, and labelled texts of each task."""
    folder = tmp_path_factory.mktemp("experts")
    moe = tanbr.open(tanbr.embedded())
    moe.export([1 / 8] * 8, folder / "base")
    for name in ("sentiment", "paraphrase", "acceptability", "duplicates"):
        moe.export([float(task == name) for task in read_card(moe.path).expert_tasks], folder / name)
    return folder


@pytest.fixture
def make(experts: Path, tmp_path: Path) -> Iterator[Make]:
    """Build a service of experts in an order, with their tasks (`folder:task` where the folder is not called so).

    The one before is stopped.
    """
    made: list[Service] = []

    def build_one(*named: str, adopt: bool = False, said: list[str] | None = None, state: str = "state") -> Service:
        pairs = [(name.split(":")[0], name.split(":")[-1]) for name in named]
        listed = [f'[[experts]]\npath = "{experts / folder}"\ntask = "{task}"' for folder, task in pairs]
        (tmp_path / "experts.toml").write_text("\n".join([f'base = "{experts / "base"}"', *listed]))
        rows = [row for _, task in pairs for row in tiny.generate(task, 30, seed=3)]
        labels = [tiny.BY_NAME[row.task].labels[int(row.target)] for row in rows]
        past = [{"text": row.text, "task": row.task, "label": of} for row, of in zip(rows, labels, strict=True)]
        (tmp_path / "past.jsonl").write_text("\n".join(map(json.dumps, past)))
        for one in made:
            one.stop()
        lines = [] if said is None else said
        made.append(
            build(
                tmp_path / "experts.toml", config=CONFIG.serve, state=tmp_path / state, adopt=adopt,
                history=tmp_path / "past.jsonl", report=lambda line, *_: lines.append(line),
            )
        )  # fmt: skip
        return made[-1]

    yield build_one
    for one in made:
        one.stop()


def live(service: Service, *blends: dict[str, float], unpin: bool = True) -> list[str]:
    """Serve blends by the experts' names, a slot each, all of it sentiment; ids of requests without feedback so far."""
    service.start()
    left: list[str] = []
    for blend in blends:
        service.pin([blend.get(name, 0.0) for name in service.info.expert_names])
        rows = tiny.generate("sentiment", 6, seed=7)
        ids = service.submit([row.text for row in rows]).result(30).request_ids
        service.feedback([Feedback(one, reward=blend["sentiment"], task="sentiment") for one in ids[:4]])
        left += ids[4:]
        service.end_slot()
    if unpin:
        service.unpin()
    service.stop()
    return left


def by_name(service: Service) -> list[tuple[int, dict[str, float], dict[str, float]]]:
    """Slots that earned something, oldest first: number, blend and mix by name."""
    experts, tasks = service.info.expert_names, service.info.tasks
    return [
        (one.slot, dict(zip(experts, one.blend, strict=True)), dict(zip(tasks, one.task_mix, strict=True)))
        for one in reversed(service.slots())
        if (one.counts > 0).any()
    ]


def used(service: Service) -> list[dict[str, float]]:
    """The blends of these slots, without weights of 0."""
    return [{name: float(x) for name, x in blend.items() if x} for _, blend, _ in by_name(service)]


def earned(service: Service) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What the router knows of blends: themselves (n, K), their rewards (n, V) and the requests behind these."""
    known = service.learner.router.known.posterior
    return known.arms, known.means, known.weights


BLENDS = {"sentiment": 0.9, "paraphrase": 0.1}, {"sentiment": 0.2, "paraphrase": 0.5, "acceptability": 0.3}
THREE, TURNED = ("sentiment", "paraphrase", "acceptability"), ("acceptability", "sentiment", "paraphrase")


def test_a_list_in_another_order_means_the_same_blends(make: Make) -> None:
    live(make(*THREE), *BLENDS)
    before = by_name(make(*THREE))
    with pytest.raises(StateError, match="was made for tasks sentiment, paraphrase, acceptability, not for accept"):
        make(*TURNED)
    said: list[str] = []
    after = make(*TURNED, adopt=True, said=said)
    assert len(before) == 2
    assert by_name(after) == before
    router = after.learner.router
    assert isinstance(router, Tanbr)
    known = router.fork().ask([0, 1, 0])
    assert known.blend.argmax() == 1
    assert f"the same experts, by name and weights: {', '.join(THREE)}" in said
    assert any("the router is told what 2 of 2 rewarded blends earned" in line for line in said)
    make(*TURNED)  # it is this list's now


def test_a_new_expert_with_its_task_loses_nothing(make: Make, tmp_path: Path) -> None:
    left = live(make(*THREE), *BLENDS)
    with peek(tmp_path / "state") as store:
        counts, texts = store.counts(), store.last_seq()
    said: list[str] = []
    after = make("duplicates", "sentiment", "paraphrase", "acceptability", adopt=True, said=said)
    assert after.store.counts() == counts == {"requests": 12, "feedback": texts}
    assert used(after) == [pytest.approx(blend) for blend in BLENDS]
    assert "new experts, with weight 0 in old blends: duplicates" in said
    late = [Feedback(left[0], reward=0.5, task="sentiment"), Feedback(left[1], reward=1.0)]
    after.start()
    assert after.feedback(late).accepted == 2  # of requests that the three experts answered
    given = after.store.feedback(after=texts)
    assert [one.task for one in given] == [after.info.tasks.index("sentiment"), None]
    assert given[1].posterior is not None
    assert given[1].posterior.shape == (4,)
    assert given[1].posterior.argmax() == after.info.tasks.index("sentiment")
    after.end_slot()


@pytest.mark.parametrize(
    "named", [("sentiment", "paraphrase"), ("paraphrase", "duplicates:acceptability", "sentiment")]
)
def test_an_expert_that_is_gone_or_changed_is_forgotten_alone(
    make: Make, tmp_path: Path, named: tuple[str, ...]
) -> None:
    left = live(make(*THREE), *BLENDS, {"sentiment": 0.3, "acceptability": 0.7})
    with peek(tmp_path / "state") as store:
        held = store.counts()
    said: list[str] = []
    after = make(*named, adopt=True, said=said)
    assert "experts that are gone or have other weights: what they earned is forgotten: acceptability" in said
    assert any("told what 2 of 3 rewarded blends earned; 1 were mostly of experts that are" in one for one in said)
    assert after.store.counts() == held
    rest = {"sentiment": 0.2 / 0.7, "paraphrase": 0.5 / 0.7}  # of the second blend, as the slot shows it now
    assert used(after) == [pytest.approx(BLENDS[0]), pytest.approx(rest), {"sentiment": 1.0}]
    assert [slot.reason for slot in reversed(after.slots()) if (slot.counts > 0).any()] == ["pinned", "gone", "gone"]
    blends, _, counts = earned(after)
    by_expert = [dict(zip(after.info.expert_names, blend, strict=True)) for blend in blends]
    assert [arm["sentiment"] for arm in by_expert] == pytest.approx([0.9, 0.2 / 0.7])
    place = after.info.tasks.index("sentiment")
    assert counts[:, place] == pytest.approx([4, 0.7 * 4])
    after.start()
    assert after.feedback([Feedback(one, reward=0.0, task="sentiment") for one in left]).accepted == len(left)
    after.end_slot()
    after.end_slot()
    assert earned(after)[2][:, place] == pytest.approx([4 + 2, 0.7 * 4])  # late rewards of the first blend alone
    assert after.state().slot == 3 + 3 + 1 + 2  # a pin ends a slot too; numbers continue
    copy = tmp_path / "state" / "before-adopt-1"
    assert f"a copy of the state as it was: {copy}" in said
    assert len(by_name(make(*THREE, state="state/before-adopt-1"))) == 3  # the old experts go on from it


def test_after_practice_feedback_says_what_blends_earned(make: Make) -> None:
    before = make(*THREE)
    router = before.learner.router
    assert isinstance(router, Tanbr)
    router.practised(np.array([0.0, 0.5, 0.5]), np.array([0.1, 0.25, np.nan]), np.full(3, 0.1))
    live(before, BLENDS[0])
    blends, rewards, counts = earned(make("duplicates", *TURNED, adopt=True))
    assert blends == pytest.approx(np.array([[0.0, 0.0, 0.9, 0.1]]))  # gains over another even blend are not rewards
    assert (rewards[0, 2], counts[0, 2]) == pytest.approx((0.9, 4.0))


def test_a_new_task_starts_from_what_like_tasks_earned(make: Make) -> None:
    live(make(*THREE), *BLENDS)
    said: list[str] = []
    after = make(*THREE, "duplicates", adopt=True, said=said)
    (line,) = [one for one in said if one.startswith("duplicates starts from what like tasks have earned")]
    assert "paraphrase" in line  # pairs of sentences too
    counts = earned(after)[2]
    new, old = counts[:, after.info.tasks.index("duplicates")], counts[:, 0]
    assert ((new > 0) & (new <= 4) & (new < old)).all()


def test_a_pinned_version_goes_on_or_keeps_its_experts(make: Make, tmp_path: Path) -> None:
    live(make(*THREE), *BLENDS, unpin=False)
    before = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir() if file.name != "lock"}
    with pytest.raises(StateError, match=r"version \d pinned, which needs the expert acceptability as it was; put it"):
        make("sentiment", "paraphrase", adopt=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir() if file.name != "lock"} == before
    after = make("duplicates", *TURNED, adopt=True)
    assert after.state().phase == "pinned"
    assert dict(zip(after.info.expert_names, after.state().blend, strict=True)) == pytest.approx(
        {"duplicates": 0.0, **BLENDS[1]}
    )
    assert after.state().merge_version == after.store.last_version  # another number: it may be merged otherwise now
    again = make("duplicates", *TURNED)
    assert again.state().phase == "pinned"


def test_what_cannot_be_adopted_is_refused_and_untouched(make: Make, experts: Path, tmp_path: Path) -> None:
    live(make("sentiment", "paraphrase"), BLENDS[0])
    before = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir() if file.name != "lock"}
    with pytest.raises(
        StateError, match=r"made for BertForSequenceClassification, .* BertMoeForSequenceClassification"
    ):
        build(None, config=CONFIG.serve, state=tmp_path / "state", adopt=True)
    with pytest.raises(StateError, match="has no expert and no task of those to be served"):
        make("acceptability", "duplicates", adopt=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir() if file.name != "lock"} == before


def test_an_adoption_that_fails_half_way_loses_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(make(*THREE), *BLENDS)
    shutil.copytree(tmp_path / "state", tmp_path / "other")

    def full(*_: object) -> Path:
        raise OutputError("no room for the copy")

    monkeypatch.setattr("tanbr.serve.lineage.back_up", full)
    with pytest.raises(OutputError, match="no room"):
        make(*TURNED, adopt=True)
    monkeypatch.undo()
    assert len(by_name(make(*THREE))) == 2  # it is still the old list's

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("tanbr.serve.service.first", broken)  # after the transaction, before the first slot
    with pytest.raises(RuntimeError, match="killed"):
        make(*TURNED, adopt=True, state="other")
    monkeypatch.undo()
    after = make(*TURNED, state="other")
    router = after.learner.router
    assert isinstance(router, Tanbr)
    assert np.abs(router.expected[0] - Tanbr(3, 3).expected[0]).max() > 0  # it was told all the same
    assert len(by_name(after)) == 2
