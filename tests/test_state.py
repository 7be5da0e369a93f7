import io
import json
import os
import tracemalloc
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import StateError
from tanbr.lab.rivals import Nucb, RandomBlend, VectorGP
from tanbr.router import Tanbr
from tanbr.router import contract as toy
from tanbr.state import HEADER, from_arrays, read_state, to_arrays, write_state

SMALL = {"paper": {"width": 8}}
MUTATIONS = int(os.environ.get("MUTATIONS", "300"))


def saved(path, kind=Tanbr, **options):
    router = kind(3, toy.V, **options)
    toy.play(router, 12)
    router.ask(toy.EVEN)
    router.save(path)
    return path.read_bytes()


def places(text, sign):
    at = text.find(sign)
    while at >= 0:
        yield at
        at = text.find(sign, at + 1)


def mutations(whole, count, seed):
    """Damage a file in the ways that disks, networks and people do."""
    rng = np.random.default_rng(seed)
    signs = [at for sign in (b"PK", b"NUMPY", b"shape", b"descr") for at in places(whole, sign)]
    for number in range(count):
        bad = bytearray(whole)
        place = int(rng.integers(len(bad)))
        match number % 6:
            case 0:
                bad[place] ^= 1 << int(rng.integers(8))
            case 1:
                bad[place : place + int(rng.integers(1, 64))] = rng.bytes(int(rng.integers(1, 64)))
            case 2:
                del bad[place : place + int(rng.integers(1, 400))]
            case 3:
                bad[place:place] = rng.bytes(int(rng.integers(1, 400)))
            case 4:
                del bad[place:]
            case _:  # near the names, sizes and offsets that a zip and its arrays begin and end with
                near = int(rng.choice(signs)) + int(rng.integers(0, 40))
                bad[near : near + 4] = rng.bytes(4)
        yield bytes(bad)


@pytest.mark.parametrize("mode", ["default", "paper"])
def test_damaged_files_are_refused_with_a_sentence_or_do_no_harm(tmp_path, mode):
    path = tmp_path / "state.npz"
    whole = saved(path, mode=mode, config=SMALL)
    expected = Tanbr.load(path).ask(toy.EVEN).blend
    refused = 0
    for bad in mutations(whole, MUTATIONS, seed=0):
        path.write_bytes(bad)
        try:
            blend = Tanbr.load(path).ask(toy.EVEN).blend
        except StateError:
            refused += 1
        else:
            assert np.array_equal(blend, expected)  # a byte that nobody reads
    assert refused > MUTATIONS // 2


@pytest.mark.parametrize("kind", [Tanbr, Nucb, VectorGP, RandomBlend])
def test_states_that_somebody_made_up_are_refused_with_a_sentence_or_work(tmp_path, kind):
    """Whole files, right checksum, wrong values."""
    path = tmp_path / "state.npz"
    saved(path, kind, **({"config": SMALL} if kind is Tanbr else {}))
    header, arrays = read_state(path)
    rng, refused = np.random.default_rng(0), 0

    def offer(header, arrays):
        nonlocal refused
        write_state(path, header, arrays)
        try:
            router = kind.load(path)
        except StateError:
            refused += 1
            return
        for decision in (*router.open, router.ask(toy.EVEN)):
            router.tell(decision, np.full(toy.V, 0.5))

    for name, array in arrays.items():
        offer(header, {**arrays, name: array[:0] if array.ndim else array.astype("float32")})
        offer(header, {**arrays, name: np.full_like(array, -7 if array.dtype.kind != "b" else 0)})
        offer(header, {**arrays, name: np.nan_to_num(array).astype("int8" if array.dtype.kind == "f" else "float64")})
        offer(header, {**arrays, name: np.concatenate([array, array]) if array.ndim else array + 10**6})
        offer(header, {key: value for key, value in arrays.items() if key != name})
        if array.dtype.kind == "f" and array.size:
            offer(header, {**arrays, name: np.where(rng.random(array.shape) < 0.3, np.nan, array)})
    for key in header:
        for value in (None, -1, "x", [], {}, 10**30):
            offer({**header, key: value}, arrays)
    for key in header["settings"]:
        for value in (None, -1, "x", [], {"default": []}, 4000):
            offer({**header, "settings": {**header["settings"], key: value}}, arrays)
    assert refused > 30


def traced(call):
    """Most bytes in use while a call is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(StateError) as caught:
            call()
        return tracemalloc.get_traced_memory()[1], str(caught.value)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2**31,), (2**40, 2**40), (0, 2**62), (-1,), (1 << 33, 0)])
def test_no_more_is_allocated_than_a_file_holds(tmp_path, shape):
    """A zip of one array whose header speaks of more than there is."""
    path, content = tmp_path / "state.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.npy", content.getvalue() + bytes(64))
    most, said = traced(lambda: read_state(path))
    assert "not a whole state" in said
    assert most < 1_000_000


@pytest.mark.parametrize("change", [{"experts": 4096}, {"tasks": 4096}])
def test_settings_that_speak_of_more_than_the_file_holds_allocate_little(tmp_path, change):
    path = tmp_path / "state.npz"
    size = len(saved(path))
    header, arrays = read_state(path)
    write_state(path, {**header, "settings": {**header["settings"], **change}}, arrays)
    most, said = traced(lambda: Tanbr.load(path))
    assert "does not fit" in said
    assert most < 500 * size


def test_what_is_no_state_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other").write_bytes(b"nothing of the kind")
    np.savez(tmp_path / "deep.npz", **{HEADER: np.frombuffer(b"[" * 200_000, dtype=np.uint8)})
    np.savez(tmp_path / "pickle.npz", **{HEADER: np.array([{"a": 1}], dtype=object)})  # is never loaded
    label = json.dumps({"version": 1, "checksum": "of another", "header": {}})
    np.savez(tmp_path / "changed.npz", **{HEADER: np.frombuffer(label.encode(), dtype=np.uint8)})
    with monkeypatch.context() as patch:
        patch.setattr("tanbr.state.VERSION", 99)
        write_state(tmp_path / "newer", {}, {})
    for name, said in {
        "nowhere": "no saved state", "": "is no file", "pipe": "is no file", "other": "not a whole state",
        "deep.npz": "not a whole state", "newer": "state version 99", "pickle.npz": "not a whole state",
        "changed.npz": "checksum does not match",
    }.items():  # fmt: skip
        with pytest.raises(StateError, match=said):
            read_state(tmp_path / name)


@dataclass(frozen=True, eq=False)
class Inner:
    rows: np.ndarray
    layers: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Outer:
    count: int
    share: float
    inner: Inner


def test_a_frozen_value_comes_back_from_its_named_arrays(tmp_path):
    value = Outer(3, 0.1, Inner(np.arange(6.0).reshape(2, 3), (np.eye(2), np.zeros(0))))
    assert list(to_arrays(value)) == ["count", "share", "inner.rows", "inner.layers.0", "inner.layers.1"]
    write_state(tmp_path / "s", {}, to_arrays(value))
    like = Outer(0, 0.0, Inner(np.zeros((0, 3)), (np.eye(2), np.zeros(0))))
    back = from_arrays(like, read_state(tmp_path / "s")[1])
    assert (back.count, back.share) == (3, 0.1)
    assert type(back.count) is int
    assert np.array_equal(back.inner.rows, value.inner.rows)
    with pytest.raises(StateError, match=r"'inner\.rows' is missing"):
        from_arrays(like, {k: v for k, v in to_arrays(value).items() if k != "inner.rows"})
    with pytest.raises(StateError, match=r"'inner\.rows' must be float64"):
        from_arrays(like, {**to_arrays(value), "inner.rows": np.zeros(3)})


def test_a_state_is_its_owners_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, replace = [], Path.replace

    def seen(self: Path, target: Path) -> Path:
        modes.append(self.stat().st_mode & 0o777)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    write_state(tmp_path / "a.state", {}, {})
    assert modes == [0o600]
    assert (tmp_path / "a.state").stat().st_mode & 0o777 == 0o600
