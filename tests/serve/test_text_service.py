from pathlib import Path

import pytest

from serve.text_model import write
from tanbr.errors import InputError
from tanbr.lab.settings import parse
from tanbr.serve.build import build
from tanbr.serve.records import Feedback
from tanbr.tasks.card import Card, write_card

PROMPTS = ["w1 w2 w3", "w9", "w5 w5 w5 w5 w5 w5"]


@pytest.mark.parametrize("family", ["t5_moe", "mixtral"])
def test_a_text_model_writes_streams_learns_and_swaps(tmp_path: Path, family: str) -> None:
    folder = write(family, tmp_path / "model")
    write_card(folder, Card(expert_tasks=tuple(f"latent-{number}" for number in range(1, 5))))
    config = parse(
        {"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always", "rewards": {"settle_slots": 0}}}
    ).serve
    live = build(folder, config=config, state=tmp_path / "state", force=True)
    live.start()
    pieces: dict[int, str] = {}
    done = live.generate(
        PROMPTS, max_tokens=7, on_token=lambda row, text: pieces.update({row: pieces.get(row, "") + text})
    ).result(60)
    assert pieces == {row: text for row, text in enumerate(done.texts) if text}
    assert all(0 <= tokens <= 7 for tokens in done.completion_tokens)
    assert done.prompt_tokens == ((4, 2, 7) if family == "t5_moe" else (3, 1, 6))
    for row, prompt in enumerate(PROMPTS):  # neighbours in the batch change nothing
        alone = live.generate([prompt], max_tokens=7).result(60)
        assert alone.texts == (done.texts[row],)
        assert alone.finish_reasons == (done.finish_reasons[row],)
    assert live.feedback([Feedback(done.request_ids[0], reward=1.0)]).accepted == 1
    live.end_slot()
    live.end_slot()
    version = live.state().merge_version
    assert live.pin([1.0, 0.0, 0.0, 0.0]) == version + 1
    assert live.generate(PROMPTS[:1], max_tokens=2).result(60).merge_version == version + 1
    told = next(view for view in live.slots() if view.slot == 0)
    assert told.told
    assert told.counts.sum() == pytest.approx(1, abs=0.5)
    with pytest.raises(InputError, match="max_tokens"):
        live.generate(["w1"], max_tokens=0)
    live.stop()
