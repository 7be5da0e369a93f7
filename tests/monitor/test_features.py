"""Features depend on a request alone: not on its neighbours, the process, or how odd it is."""

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import InputError
from tanbr.monitor.features import SURFACE, VIEWS, Features, check, plain_text, read
from tanbr.monitor.tokens import MAX_CHARS, Batch, Tokens
from tanbr.types import Text

ascii_texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
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


def test_surface_features_say_what_they_are_called() -> None:
    pair = ("Is the cat on the mat?", "The cat , is black .")
    assert surface(pair, "is a pair") == 1
    assert surface(pair, "words in the first text") == pytest.approx(np.log1p(7))
    assert surface(pair, "question marks in the first text") == 1
    assert surface(pair, "question marks in the second text") == 0
    assert surface(pair, "spaces before marks") == pytest.approx(np.log1p(2))
    assert surface(pair, "marks") == pytest.approx(np.log1p(3))
    assert surface(pair, "share of the second's words that the first has") == pytest.approx(3 / 6)  # the, cat, is
    assert surface(pair, "share of the first's words that the second has") == pytest.approx(4 / 7)  # is, the, cat, the
    assert surface("AB 12", "capitals") == pytest.approx(np.sqrt(2 / 5))
    assert surface(("so.", "what"), "second text ends with a mark") == 0


def test_case_is_folded_in_words_and_kept_in_keys() -> None:
    lower, upper = read(["a cat"]), read(["A CAT"])
    assert np.array_equal(lower.views["roles"].values, upper.views["roles"].values)
    assert lower.keys != upper.keys
    assert read(["a"]).keys != read([("a", "")]).keys


def test_a_shared_word_has_another_role() -> None:
    def roles(text: Text) -> set[int]:
        return set(read([text]).views["roles"].values.tolist())

    assert len(roles(("cat", "dog")) & roles(("cat", "fish"))) == 4  # cat and the frame
    assert len(roles(("cat", "cat")) & roles(("cat", "fish"))) == 3  # the frame


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


@settings(max_examples=60)
@given(st.lists(st.tuples(ascii_texts, ascii_texts), min_size=1, max_size=5))
def test_tokens_are_words_and_marks(texts: list[tuple[str, str]]) -> None:
    tokens = Tokens.of(Batch.of(texts))
    expected = [[len(re.findall(r"[a-zA-Z0-9_]+|[^\s\w]", part)) for part in text] for text in texts]
    assert tokens.lengths.T.tolist() == expected


def test_hashes_do_not_depend_on_how_long_the_batch_is() -> None:
    """Short batches use powers that lie ready, long ones work them out."""
    many = ["word " * 100] * 200 + ["the last one"]
    assert Batch.of(many).buffer.size > 1 << 14
    assert Batch.of(many).keys()[-1] == Batch.of(many[-1:]).keys()[0]
    assert np.array_equal(Tokens.of(Batch.of(many)).hashes[-6:], Tokens.of(Batch.of(many[-1:])).hashes)
