import numpy as np
import pytest

from tanbr.serve.jobs import Job
from tanbr.serve.lineup import Lineup
from tanbr.serve.parts import parted, placed
from tanbr.serve.records import Answered, Generated, ServiceError

TEXTS = ["a", "b", "c", "d"]
PLACES = np.array([1, 0, 1, 0])


def job() -> Job:
    return Job(TEXTS, columns={"input_ids": [[1], [2], [3], [4]]}, cut=(0, 5, 0, 0), limits=(9, 8, 7, 6))


def answered(part: Job, version: int) -> Answered:
    ids = tuple(f"{version}{text}" for text in part.texts)
    return Answered(ids, np.array([[float(row[0])] for row in part.columns["input_ids"]]), version, part.cut)


def test_the_parts_answer_together_in_the_order_of_the_texts() -> None:
    whole = job()
    first, second = parted(whole, PLACES)
    assert (first.texts, first.place, first.limits) == (["b", "d"], 0, (8, 6))
    assert (second.texts, second.place, second.columns) == (["a", "c"], 1, {"input_ids": [[1], [3]]})
    second.resolve(answered(second, 7))
    assert not whole.future.done()
    first.resolve(answered(first, 6))
    answer = whole.future.result(0)
    assert answer.request_ids == ("7a", "6b", "7c", "6d")
    assert answer.logits.ravel().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (answer.merge_version, answer.merge_versions, answer.cut) == (7, (7, 6, 7, 6), (0, 5, 0, 0))


def test_parts_may_be_parted_again() -> None:
    whole = job()
    for part in parted(whole, PLACES):
        for again in parted(part, np.array([0, 2])):
            again.resolve(answered(again, again.place))
    assert whole.future.result(0).request_ids == ("0a", "0b", "2c", "2d")


def test_what_is_written_is_put_together_and_streams_name_the_clients_own_prompts() -> None:
    heard: list[tuple[int, str]] = []
    whole = job()
    whole.on_token = lambda prompt, piece: heard.append((prompt, piece))
    for version, part in enumerate(parted(whole, PLACES)):
        assert part.on_token is not None
        part.on_token(1, part.texts[1])
        ones = (1,) * len(part.texts)
        part.resolve(Generated(tuple(part.texts), tuple(part.texts), ones, ones, ("stop",) * len(ones), version))  # type: ignore[arg-type]
    assert heard == [(3, "d"), (2, "c")]
    done = whole.future.result(0)
    assert (done.texts, done.merge_versions, done.prompt_tokens) == (tuple(TEXTS), (1, 0, 1, 0), (1, 1, 1, 1))


def test_one_part_that_fails_fails_the_whole_and_a_client_that_leaves_ends_all_parts() -> None:
    whole = job()
    first, second = parted(whole, PLACES)
    first.fail(ServiceError("broken"))
    with pytest.raises(ServiceError, match="broken"):
        whole.future.result(0)
    second.resolve(answered(second, 1))  # too late, and nobody minds
    left = job()
    parts = parted(left, PLACES)
    left.future.cancel()
    assert not any(part.wanted for part in parts)


def test_without_a_panel_the_first_model_answers() -> None:
    one = job()
    assert placed(one, Lineup(())) == [one]
    assert one.place == 0
