from pathlib import Path

import numpy as np
import pytest
import torch

from moe.tiny import build
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.decode import decode

LIMITS = [3, 7, 7]


def moe_of(kind: str, folder: Path) -> Moe:
    build("t5_moe" if kind == "encoder_decoder" else "mixtral").save_pretrained(folder)
    return open_moe(folder)


def prompts(left: bool) -> dict[str, torch.Tensor]:
    rows = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    ids, mask = torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)
    for i, row in enumerate(rows):
        part = slice(5 - len(row), 5) if left else slice(0, len(row))
        ids[i, part], mask[i, part] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("kind", ["encoder_decoder", "causal"])
def test_decoding_is_what_transformers_does_greedily(kind: str, tmp_path: Path) -> None:
    model = moe_of(kind, tmp_path).dense()
    inputs = prompts(left=kind == "causal")
    steps: list[list[int | None]] = []
    done = decode(model, inputs, limits=LIMITS, on_step=steps.append)
    expected = model.generate(**inputs, max_new_tokens=7, do_sample=False, decoder_start_token_id=0, pad_token_id=0)
    expected = expected[:, 1:] if kind == "encoder_decoder" else expected[:, 5:]
    for row, limit in enumerate(LIMITS):
        wanted = [int(t) for t in expected[row][:limit]]
        ended = model.generation_config.eos_token_id in wanted
        assert done.tokens[row] == (wanted[: wanted.index(model.generation_config.eos_token_id)] if ended else wanted)
        assert done.stopped[row] == ended
        assert [step[row] for step in steps if step[row] is not None] == done.tokens[row]
    assert ((done.confidence > 0) & (done.confidence <= 1)).all()
    assert np.isfinite(done.confidence).all()
