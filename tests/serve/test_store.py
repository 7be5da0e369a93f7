import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.serve.ids import RequestIds
from tanbr.serve.records import ServiceError
from tanbr.serve.store import FILE, VERSION, FeedbackRow, RequestRow, Store, shown, vector

IDS = RequestIds(b"k" * 32)


def request(slot: int) -> RequestRow:
    return RequestRow(IDS.issue(slot, 1)[0], np.array([0.25, 0.75]), np.array([1.0, 2.0]))


def test_feedback_counts_once_and_comes_back_with_its_requests_posterior(tmp_path: Path) -> None:
    store = Store(tmp_path)
    row, lost = request(3), request(3)
    store.add_requests([row])
    given = [FeedbackRow(row.id, "feedback", None, 0.5), FeedbackRow(lost.id, "feedback", 1, 1.0)]
    assert store.add_feedback(given) == ["accepted", "accepted"]
    assert store.add_feedback(given[:1]) == ["repeated"]
    first, second = store.feedback(after=0)
    assert first.posterior is not None
    assert (first.slot, first.reward, first.posterior.tolist()) == (3, 0.5, [0.25, 0.75])
    assert second.posterior is None  # its request was not written down before the process ended
    assert [r.seq for r in store.feedback(after=first.seq)] == [second.seq]
    assert store.feedback(after=0, slot=4) == []
    assert store.logits_of([row.id, lost.id])[row.id].tolist() == [1.0, 2.0]


def test_whatever_is_in_the_folder_is_its_owners_from_the_first_moment(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    mask = os.umask(0)  # as generous as can be
    try:
        store = Store(folder)
        store.set_meta("something", 1)
    finally:
        os.umask(mask)
    assert folder.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert set(files) == {FILE, f"{FILE}-wal", f"{FILE}-shm", "lock"}
    assert set(files.values()) == {0o600}
    store.close()


@pytest.mark.parametrize("gone", [FILE, f"{FILE}-wal", "everything", "replaced"])
def test_what_was_deleted_under_the_server_takes_no_feedback(tmp_path: Path, gone: str) -> None:
    store = Store(tmp_path / "state")
    given = FeedbackRow(request(0).id, "feedback", None, 1.0)
    if gone == "everything":
        shutil.rmtree(tmp_path / "state")
    elif gone == "replaced":  # by another server
        (tmp_path / "state").rename(tmp_path / "old")
        Store(tmp_path / "state")
    else:
        (tmp_path / "state" / gone).unlink()
    with pytest.raises(ServiceError, match="taken away under the server") as said:
        store.add_feedback([given])
    assert str(tmp_path) not in str(said.value)


def test_the_oldest_slots_are_forgotten_and_their_feedback_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for slot in range(30):
        store.add_requests([request(slot) for _ in range(3)])
        with store.transaction() as write:
            write.execute(
                "INSERT INTO slots (slot, mix, note, started) VALUES (?, '[1]', '', 0)",
                (slot,),
            )
    with store.transaction() as write:
        write.execute("CREATE TRIGGER full BEFORE DELETE ON slots BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(ServiceError, match="disk full"):
        store.forget(slots=10, requests=10**6)
    assert store.oldest == 0  # nothing is forgotten before it is deleted
    assert len(store.slots()) == 30
    with store.transaction() as write:
        write.execute("DROP TRIGGER full")
    store.forget(slots=10, requests=10**6)
    assert store.oldest == 20
    assert [row["slot"] for row in store.slots()] == list(range(29, 19, -1))
    store.forget(slots=10, requests=6)  # two whole slots
    assert store.oldest == 28


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("no database, but long enough to be taken for one " * 20)
    for _ in range(2):  # it lets go of the folder
        with pytest.raises(StateError, match=r"cannot be used \(file is not a database\); restore the folder"):
            Store(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / "router-3.state").touch()
    with pytest.raises(StateError, match=r"cannot be used .*it is empty"):  # a new server would delete states
        Store(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(StateError, match=r"cannot be used .* or give another --state"):
        Store(tmp_path)


def test_a_store_that_is_damaged_while_it_is_used_says_so(tmp_path: Path) -> None:
    store, given = Store(tmp_path), FeedbackRow(request(0).id, "feedback", 0, 1.0)
    with store.transaction() as write:
        write.execute("PRAGMA writable_schema = ON")
        write.execute("UPDATE sqlite_master SET rootpage = 9999 WHERE name = 'feedback'")
    store.close()
    with pytest.raises((StateError, ServiceError), match=r"restore|cannot be written"):
        Store(tmp_path).add_feedback([given])


@pytest.mark.parametrize("text", ["", "{", "[1, [2]]", '["x"]', "3", '"words"', "[" * 100_000])
def test_a_damaged_vector_is_one_sentence(text: str) -> None:
    with pytest.raises(StateError, match="the store is damaged"):
        vector(text)


def test_vectors_keep_every_bit_and_nan() -> None:
    values = np.array([1 / 3, np.nan, 1e-300])
    assert "null" in shown(values)
    np.testing.assert_array_equal(vector(shown(values)), values)
    assert not vector(shown(values)).flags.writeable


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (1, "was made by tanbr 0.1; start a new state folder"),
        (99, "made by another tanbr.* that wrote it"),
    ],
)
def test_a_state_of_another_version_is_refused(tmp_path: Path, version: int, says: str) -> None:
    store = Store(tmp_path)
    assert store.meta("version") == VERSION
    store.set_meta("version", version)
    store.close()
    with pytest.raises(StateError, match=says):
        Store(tmp_path)


def test_a_folder_is_of_one_server_at_a_time_and_the_other_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StateError, match=f"in use by another server \\(process {os.getpid()}\\)"):
        Store(tmp_path)
    store.close()
    store.close()
    Store(tmp_path).close()
