import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serve.text_model import write
from tanbr.errors import CheckpointError, ConfigError, InputError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.engine import Engine

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 6, seed=5, split="test")]


def test_a_bad_blend_leaves_the_old_one_serving(moe: Moe) -> None:
    engine = Engine(moe)
    version = engine.swap(np.eye(8)[1])
    before = engine.logits(TEXTS[:4])
    for wrong in ([0.5, 0.5], np.full(8, 0.2), [np.nan] * 8):
        with pytest.raises(InputError, match="blend"):
            engine.swap(wrong)
    assert engine.live.version == version
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)


@pytest.mark.parametrize("spare", [True, False])
def test_what_is_prepared_can_be_looked_over_and_answers_only_once_committed(moe: Moe, spare: bool) -> None:
    engine = Engine(moe, blend=np.eye(8)[0], version=5, slot=3, spare=spare)
    before, after = (Engine(moe, blend=np.eye(8)[k]).logits(TEXTS[:4]) for k in (0, 1))
    staged = engine.prepare(np.eye(8)[1])
    assert (staged.version, staged.changed) == (6, True)
    np.testing.assert_array_equal(engine.logits(TEXTS[:4], live=staged), after)
    assert engine.sane("a", staged)
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
    assert (engine.live.version, engine.live.slot) == (5, 3)
    (live,) = engine.commit(staged, slot=4).models
    assert live is engine.live
    assert (live.version, live.slot) == (6, 4)
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), after)
    with pytest.raises(RuntimeError, match="only once"):
        engine.commit(staged)


@pytest.mark.parametrize("spare", [True, False])
def test_what_is_discarded_never_happened(moe: Moe, spare: bool) -> None:
    engine = Engine(moe, blend=np.eye(8)[0], version=5, spare=spare)
    before = engine.logits(TEXTS[:4])
    staged = engine.prepare(np.eye(8)[1])
    engine.logits(TEXTS[:1], live=staged)
    engine.discard(staged)
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
    assert not engine.held  # nobody goes back to a blend that was refused
    assert (engine.live.version, engine.swap(np.eye(8)[2])) == (5, 6)
    with pytest.raises(RuntimeError, match="prepared last"):
        engine.commit(staged)


@pytest.mark.parametrize(("when", "spare"), [("prepare", True), ("prepare", False), ("look", False), ("commit", False)])
def test_a_file_that_changed_is_noticed_before_anything_is_read_or_overwritten(
    moe: Moe, tmp_path: Path, when: str, spare: bool
) -> None:
    folder = shutil.copytree(moe.path, tmp_path / "model")
    engine = Engine(open_moe(folder), blend=np.eye(8)[0], version=1, spare=spare)
    before = engine.logits(TEXTS[:4])
    staged = None if when == "prepare" else engine.prepare(np.eye(8)[1])
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)  # reading past the end of a mapped file would end the process
    steps = {
        "prepare": lambda: engine.prepare(np.eye(8)[1]),
        "look": lambda: engine.logits(TEXTS[:1], live=staged),
        "commit": lambda: staged is not None and engine.commit(staged),
    }
    with pytest.raises(CheckpointError, match="has changed"):
        steps[when]()
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
    assert engine.live.version == 1


@pytest.mark.parametrize("restored", [True, False])
def test_a_merge_in_place_that_fails_puts_the_old_blend_back_or_answers_nothing(
    moe: Moe, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    mine = open_moe(moe.path)
    engine = Engine(mine, blend=np.eye(8)[0], version=1)
    before = engine.logits(TEXTS[:4])
    staged, tensors, merges = engine.prepare(np.eye(8)[1]), mine.tensors, 0

    def failing(*args: Any, **settings: Any) -> Iterator[Any]:
        nonlocal merges
        merges += 1
        for number, merged in enumerate(tensors(*args, **settings)):
            yield merged
            if number == 3 and (merges == 1 or not restored):
                raise CheckpointError("the disk is gone")

    monkeypatch.setattr(mine, "tensors", failing)
    with pytest.raises(CheckpointError, match="the disk is gone"):
        engine.commit(staged)
    assert engine.live.version == 1
    if restored:
        np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
        return
    with pytest.raises(CheckpointError, match="could not be restored"):  # half of one blend, half of another
        engine.logits(TEXTS[:4])
    monkeypatch.setattr(mine, "tensors", tensors)
    assert engine.swap(np.eye(8)[0], version=1) == 1  # said to answer already, but not whole
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)


def test_a_batch_keeps_its_version_while_another_takes_over_and_no_merge_touches_it(
    moe: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(moe, blend=np.eye(8)[0], version=1, spare=True)
    before, readers = engine.logits(TEXTS[:4]), []
    with engine.using() as live:
        engine.swap(np.eye(8)[1])
        assert engine.live.version == 2
        merge = live.backend.merge

        def seen(*args: Any, **settings: Any) -> None:
            readers.append(live.backend.readers)
            merge(*args, **settings)

        monkeypatch.setattr(live.backend, "merge", seen)
        second = threading.Thread(target=engine.swap, args=(np.eye(8)[2],))
        second.start()
        second.join(0.2)  # time for a merge that does not wait
        np.testing.assert_array_equal(engine.logits(TEXTS[:4], live=live), before)
    second.join()
    assert readers == [0]  # whenever the merge came, nobody was using its buffer
    assert engine.live.version == 3


def test_going_back_merges_nothing_while_the_spare_still_holds_it(moe: Moe) -> None:
    engine = Engine(moe, blend=np.eye(8)[0], version=1, spare=True)
    before = engine.logits(TEXTS[:4])
    bad = engine.live
    engine.swap(np.eye(8)[1])
    assert engine.held == (bad,)
    merged = engine.merge_seconds
    assert engine.swap(np.eye(8)[0], version=1) == 1
    assert engine.merge_seconds == merged
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
    engine.swap(np.eye(8)[1], version=2)
    broken = engine.live
    assert engine.revert(broken)
    assert (engine.live.version, engine.held) == (1, ())  # what was broken is not offered again
    assert engine.revert(broken)  # it answers no more already
    assert not engine.revert(engine.live)  # there is no other


def served(engine: Engine) -> dict[int, int]:
    """Version → the expert that it is, by its answers."""
    alone = [Engine(engine.moe, blend=np.eye(8)[k]).logits(TEXTS[:2]) for k in range(5)]
    found = {}
    for place, live in enumerate(engine.panel.models):
        with engine.using(engine.panel, place) as held:
            logits = engine.logits(TEXTS[:2], live=held)
        (found[live.version],) = [k for k in range(5) if np.array_equal(alone[k], logits)]
    return found


@pytest.mark.parametrize("spare", [True, False])
def test_a_panel_answers_side_by_side_and_only_what_changed_is_merged(moe: Moe, spare: bool) -> None:
    engine, merges = panel(moe, 3, spare=spare), []
    assert [(one.version, one.slot, one.place) for one in engine.panel.models] == [(1, 1, 0), (2, 1, 1), (3, 1, 2)]
    assert served(engine) == {1: 0, 2: 1, 3: 2}
    on_merge(engine, lambda: merges.append(1))
    engine.commit(*(engine.prepare(np.eye(8)[k]) for k in (2, 3, 1)), slot=3)
    assert served(engine) == {3: 2, 4: 3, 2: 1}
    assert len(merges) == 1  # one is new, and it is merged once
    engine.commit(*(engine.prepare(np.eye(8)[k], version=v) for k, v in ((0, 1), (3, 4))), slot=4)
    assert served(engine) == {1: 0, 4: 3}  # fewer than there are buffers
    assert len(merges) == (1 if spare else 2)  # the one that left had not lost its buffer, if there was a spare
    engine.swap(np.eye(8)[2])
    assert engine.panel.assignment is None
    assert list(served(engine).values()) == [2]


def panel(moe: Moe, models: int, *, spare: bool = True) -> Engine:
    """Serve the first experts side by side, in slot 1."""
    engine = Engine(moe, models=models, blend=np.eye(8)[0], version=1, spare=spare)
    engine.commit(*(engine.prepare(np.eye(8)[k]) for k in range(models)), slot=1)
    return engine


def on_merge(engine: Engine, do: Callable[[], object]) -> None:
    """Do something before every merge into any buffer."""
    for backend in engine.backends:

        def merge(*arguments: Any, merge: Any = backend.merge, **named: Any) -> None:
            do()
            merge(*arguments, **named)

        backend.merge = merge  # type: ignore[method-assign]


def fail() -> None:
    raise CheckpointError("no more")


def test_a_whole_panel_changes_through_one_spare_and_what_fails_leaves_whole_models(moe: Moe) -> None:
    engine = panel(moe, 2)
    staged = [engine.prepare(np.eye(8)[k]) for k in (2, 3)]
    assert [one.version for one in staged] == [3, 4]
    on_merge(engine, fail)  # of the second one, into the buffer of a model that leaves
    with pytest.raises(CheckpointError, match="no more"):
        engine.commit(*staged, slot=2)
    assert served(engine) == {2: 1}  # one has left its buffer, the other still answers
    assert [(live.slot, live.place) for live in engine.panel.models] == [(1, 1)]
    assert [live.version for live in engine.held] == []  # nor is there anything that has answered to go back to


@pytest.mark.parametrize(
    ("spare", "between"), [(True, [[(2, 1, 1)]]), (False, [[(2, 1, 1)], [(3, 2, 0)]])], ids=["spare", "none"]
)
def test_all_that_answer_while_a_panel_is_replaced_are_of_one_slot(
    moe: Moe, spare: bool, between: list[list[tuple[int, int, int]]]
) -> None:
    engine, seen = panel(moe, 2, spare=spare), []
    staged = [engine.prepare(np.eye(8)[k]) for k in (2, 3)]
    on_merge(engine, lambda: seen.append([(one.version, one.slot, one.place) for one in engine.panel.models]))
    engine.commit(*staged, slot=2)
    assert seen == between
    assert served(engine) == {3: 2, 4: 3}


def buffers(engine: Engine) -> int:
    """How many buffers there are; none may be lost, and none be in two places."""
    found = [id(backend) for backend in engine.backends]
    assert len(set(found)) == len(found)
    return len(found)


@pytest.mark.parametrize("when", ["prepare", "commit"])
def test_a_model_that_breaks_while_others_are_merged_is_not_confused_with_them(moe: Moe, when: str) -> None:
    engine = panel(moe, 3)
    broken = engine.panel.models[0]
    if when == "commit":
        staged = [engine.prepare(np.eye(8)[k]) for k in (1, 3, 4)]
    on_merge(engine, lambda: engine.revert(broken))  # the next merge, whichever buffer it goes to, meets it
    if when == "prepare":
        engine.discard(engine.prepare(np.eye(8)[3]))
        assert served(engine) == {2: 1, 3: 2}
    else:
        engine.commit(*staged, slot=2)
        assert sorted(served(engine).values()) == [1, 3, 4]
    assert buffers(engine) == 4


def test_a_commit_that_fails_loses_no_buffer(moe: Moe) -> None:
    engine = Engine(moe, models=3, blend=np.eye(8)[0], version=1, spare=True)
    first, *others = [engine.prepare(np.eye(8)[k]) for k in (1, 2, 3)]
    engine.prepare(np.eye(8)[4])  # takes the first one's buffer
    on_merge(engine, fail)
    with pytest.raises(CheckpointError, match="no more"):
        engine.commit(first, *others, slot=2)
    assert served(engine) == {1: 0}  # not all of the new ones were ready
    assert buffers(engine) == 4


def test_what_breaks_between_prepare_and_commit_is_not_let_back_in(moe: Moe) -> None:
    engine = panel(moe, 2)
    staged = [engine.prepare(np.eye(8)[k]) for k in (0, 1)]
    engine.revert(engine.panel.models[0])
    with pytest.raises(CheckpointError, match="merge version 1 was found broken before it was committed"):
        engine.commit(*staged, slot=2)
    assert served(engine) == {2: 1}
    assert buffers(engine) == 3


def test_settings_that_cannot_be_are_refused_in_a_sentence(moe: Moe) -> None:
    for models in (0, 9):
        with pytest.raises(ConfigError, match=f"a panel holds 1 to 8 models, as many as experts .got {models}"):
            Engine(moe, models=models)
    with pytest.raises(ConfigError, match="unknown backend 'abacus'; choose one of auto, onnx, torch"):
        Engine(moe, backend="abacus")
    for device in ("cuda:97", "no such device"):
        with pytest.raises(ConfigError, match=f"device must be one that torch can use here .got '{device}'"):
            Engine(moe, device=device)
    with pytest.raises(ConfigError, match="int8 runs on the CPU"):
        Engine(moe, device="meta", precision="int8")


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch(moe: Moe) -> None:
    engine = Engine(moe, batch=16, blend=np.eye(8)[2])
    engine.live.backend.model.double()  # type: ignore[attr-defined]  # so that rounding is far below any leak
    together = engine.logits(TEXTS)
    alone = np.concatenate([engine.logits([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)  # 1e7 roundings of float64, of values near 1
    assert engine.logits([]).shape == (0, len(engine.columns))


def test_a_model_that_writes_is_checked_before_and_while_it_answers(tmp_path: Path) -> None:
    engine = Engine(open_moe(write("t5_moe", tmp_path / "model")), batch=2)
    assert engine.sane("w1", engine.live)
    staged = engine.prepare(np.eye(4)[1])  # no spare: checked in place
    assert engine.sane("w1", staged)
    with torch.no_grad():
        engine.live.backend.model.lm_head.weight.fill_(float("nan"))  # type: ignore[attr-defined]
    assert not engine.sane("w1", engine.live)
