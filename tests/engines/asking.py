"""What the tests of engines share: a backend before a fake one, and what transformers itself answers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from engines.fake_engine import FakeEngine, FakeLlamaCpp
from tanbr.engines import connect
from tanbr.engines.remote import Remote
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.engine import Engine

PROMPTS = ["w1 w2 w3", "w9", "w5 w5 w5 w5 w5 w5"]
BLENDS = [[1.0, 0, 0, 0], [0, 0, 0.5, 0.5], [0.25] * 4, [0, 1.0, 0, 0]]


@contextmanager
def before(engine: FakeEngine, moe: Moe) -> Iterator[Remote]:
    """A backend that talks to an engine."""
    made = connect(moe, engine="llamacpp" if isinstance(engine, FakeLlamaCpp) else "vllm", url=engine.url)
    try:
        yield made
    finally:
        made.close()


def serving(backend: Remote, moe: Moe) -> Engine:
    """An engine of ours that has this one backend."""
    return Engine(moe, backend=lambda *_, **__: backend)


@contextmanager
def serving_first(engine: FakeEngine, moe: Moe) -> Iterator[tuple[Engine, Remote]]:
    """An engine of ours that answers with the first blend."""
    with before(engine, moe) as backend:
        served = serving(backend, moe)
        served.swap(BLENDS[0])
        yield served, backend


def right(engine: Engine, backend: Remote, moe: Moe) -> bool:
    """Whether the first blend answers as it does with transformers."""
    return answers(engine, backend) == transformers_answers(moe, BLENDS[0])


def answers(engine: Engine, backend: Remote, *, limit: int = 7) -> list[tuple[int, ...]]:
    """Tokens that an engine writes for the prompts."""
    done = backend.generate(engine.padded(PROMPTS)[0], limits=[limit] * len(PROMPTS), on_step=lambda _: ())
    return [() if row is None else row.tokens for row in done]


@torch.inference_mode()
def transformers_answers(
    moe: Moe, blend: Sequence[float], prompts: Sequence[str] = PROMPTS, *, limit: int = 7, model: Any = None
) -> list[tuple[int, ...]]:
    """Tokens that transformers writes with a merge, greedily, without the token that ends them."""
    model = moe.dense(blend) if model is None else model
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    answers = []
    for prompt in prompts:
        ids = torch.tensor([encode.encode([prompt]).columns["input_ids"][0]])
        mask = torch.ones_like(ids)
        new = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=False)[
            0, ids.shape[1] :
        ]
        answers.append(tuple(token for token in new.tolist() if token != model.config.eos_token_id))
    return answers
