"""Words are found and hashed by array arithmetic as a plain loop would find them."""

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.tokens import MAX_CHARS, Batch, Tokens

ascii_texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)


@settings(max_examples=60)
@given(st.lists(st.tuples(ascii_texts, ascii_texts), min_size=1, max_size=5))
def test_tokens_are_words_and_marks(texts: list[tuple[str, str]]) -> None:
    tokens = Tokens.of(Batch.of(texts))
    expected = [[len(re.findall(r"[a-zA-Z0-9_]+|[^\s\w]", part)) for part in text] for text in texts]
    assert tokens.lengths.T.tolist() == expected


def test_a_word_has_one_hash_wherever_it_stands() -> None:
    tokens = Tokens.of(Batch.of(["Cat dog", ("a cat", "x" * 400 + " CAT")]))
    cats = tokens.hashes[[1, 7, 10]]
    assert len(set(cats.tolist())) == 1
    assert len(set(tokens.hashes.tolist())) == len(["<start>", "cat", "dog", "<break>", "<end>", "a", "xxx"])


def test_hashes_do_not_depend_on_how_long_the_batch_is() -> None:
    """Short batches use powers that lie ready, long ones work them out."""
    many = ["word " * 100] * 200 + ["the last one"]
    assert Batch.of(many).buffer.size > 1 << 14
    assert Batch.of(many).keys()[-1] == Batch.of(many[-1:]).keys()[0]
    assert np.array_equal(Tokens.of(Batch.of(many)).hashes[-6:], Tokens.of(Batch.of(many[-1:])).hashes)


def test_only_so_much_of_a_text_is_read() -> None:
    assert Batch.of(["x" * 10**6]).buffer.size == MAX_CHARS + 3
