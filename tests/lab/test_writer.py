from pathlib import Path

import numpy as np
import pytest
import torch

from elsewhere import elsewhere
from lab.written import TEXTS, Written, written
from serve.text_model import write
from tanbr.errors import CheckpointError
from tanbr.lab.answers import model_for
from tanbr.lab.compare import compare
from tanbr.lab.dense import with_start
from tanbr.lab.methods import Bench, method
from tanbr.lab.settings import Config
from tanbr.lab.tasks import traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.lab.writer import Writer
from tanbr.merge import open as open_moe
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import Answer

SOME = np.array([0.5, 0.0, 0.25, 0.25])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("written") / "t5")


def test_it_writes_what_the_dense_model_generates(four: Written) -> None:
    model = model_for(four.moe, four.corpus.space)
    assert isinstance(model, Writer)
    model.model.double()  # rounding must not decide between two words
    model.swap(SOME)
    dense = with_start(four.moe.dense().double())
    four.moe.merge_into(dense, SOME)
    for text, answer in zip(TEXTS, model.answers(TEXTS), strict=True):
        ids = torch.tensor([model.encode.tokenizer(text)["input_ids"]])
        tokens = dense.generate(input_ids=ids, max_new_tokens=model.longest, do_sample=False)
        assert answer == model.encode.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0]


def test_written_answers_are_compared_by_exact_match(four: Written) -> None:
    corpus = four.corpus
    bench = Bench(four.moe, corpus, Config())
    bench.answers.model.model.double()  # rounding must not decide between two words
    mixes = traffic.mixes("fixed", tasks=2, slots=3, seed=0, mix=[0.5, 0.5])
    stream = Traffic(corpus.stream, mixes, requests=16, seed=0)
    players = {name: method(name).contestant(bench, mixes=mixes, seed=0) for name in ("average", "tanbr", "random")}
    result = compare(players, stream, space=corpus.space, best="average")
    known = Writer(four.moe, corpus.space)
    known.model.double()
    known.swap(np.full(4, 1 / 4))
    for slot, record in zip(stream, result.records["average"], strict=True):
        right = [
            known.answers([row.text])[0] == text_to_text.answer(row, corpus.space.task(row.task)) for row in slot.rows
        ]
        assert record.total_reward == pytest.approx(np.mean(right))
    assert 0 < result.rewards("average").mean() < 1


def test_a_model_that_neither_classifies_nor_translates_is_refused(four: Written, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a mixtral model; answers are compared of"):
        model_for(open_moe(write("mixtral", tmp_path / "m")), four.corpus.space)


def test_it_writes_the_same_elsewhere(four: Written) -> None:
    def answers(device: str) -> list[Answer]:
        model = model_for(open_moe(four.moe.path, device=device), four.corpus.space)
        model.swap(SOME)
        return model.answers(TEXTS)

    with elsewhere() as device:
        assert answers(str(device)) == answers("cpu")
