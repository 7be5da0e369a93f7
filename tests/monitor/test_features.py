"""Features depend on a request alone: not on its neighbours, the process, or how odd it is."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.monitor.features import SURFACE, VIEWS, Features, check, plain_text, read
from tanbr.monitor.tokens import MAX_CHARS
from tanbr.types import Text

any_text = st.text(max_size=40) | st.tuples(st.text(max_size=30), st.text(max_size=30))


def same(one: Features, two: Features) -> bool:
    views = all(
        np.array_equal(one.views[name].values, two.views[name].values)
        and np.array_equal(one.views[name].starts, two.views[name].starts)
        for name in VIEWS
    )
    return views and np.array_equal(one.keys, two.keys) and np.array_equal(one.surface, two.surface)


def surface(text: Text, name: str) -> float:
    return float(read([text]).surface[0, SURFACE.index(name)])


@settings(max_examples=60)
@given(st.lists(any_text, max_size=6))
def test_a_request_reads_the_same_alone_and_in_a_batch(texts: list[Text]) -> None:
    features = read(texts)
    assert same(features, Features.concatenate([Features.empty(), *(read([text]) for text in texts)]))
    assert np.isfinite(features.surface).all()
    assert all((view.lengths > 0).all() for view in features.views.values())


def test_hashes_are_the_same_in_every_process() -> None:
    code = "from tanbr.monitor.features import read; print(read([('A cat', 'öé')]).views['roles'].values.tolist())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(read([("A cat", "öé")]).views["roles"].values.tolist())


def test_odd_texts_are_read() -> None:
    odd: list[Text] = [
        "",
        ("", ""),
        "\ud800",
        "\x00\x1f\x02\x03",
        "漢字かな",
        " \t\n",
        ("\x1f" * 9, "a"),
        "x" * 3_000_000,
    ]
    features = read(odd)
    assert len(features) == len(odd)
    assert np.isfinite(features.surface).all()
    assert features.views["bytes"].lengths.max() <= 2 * 4 * MAX_CHARS + 3


@pytest.mark.parametrize(
    "bad", [[None], [3], [b"bytes"], [("a",)], [("a", "b", "c")], [("a", None)], "one text", b"one"]
)
def test_what_is_no_text_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="must be"):
        check(bad)  # type: ignore[arg-type]


def test_plain_texts_have_neither_case_nor_marks() -> None:
    assert plain_text("It 's NOT over -- we do n't  know ( yet ) !") == "its not over we dont know yet"
    assert plain_text(("Who?", "The farmer's dog.")) == ("who", "the farmers dog")
