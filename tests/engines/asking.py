"""What the tests of engines share: a backend before a fake one, and what transformers itself answers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from engines.fake_engine import FakeLlamaCpp, FakeVllm
from tanbr.engines import connect
from tanbr.engines.remote import Remote
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.engine import Engine

PROMPTS = ["w1 w2 w3", "w9", "w5 w5 w5 w5 w5 w5"]
BLENDS = [[1.0, 0, 0, 0], [0, 0, 0.5, 0.5], [0.25] * 4, [0, 1.0, 0, 0]]


@contextmanager
def before(engine: FakeVllm, moe: Moe, *more: FakeVllm, models: int = 1) -> Iterator[Remote]:
    """A backend that talks to an engine, or to several."""
    kind = "llamacpp" if isinstance(engine, FakeLlamaCpp) else "vllm"
    made = connect(moe, engine=kind, urls=[engine.url, *(one.url for one in more)], models=models)
    try:
        yield made
    finally:
        made.close()


def serving(backend: Remote, moe: Moe, *, models: int = 1) -> Engine:
    """An engine of ours that has this backend, and as many others as it has room for."""
    return Engine(moe, backend=lambda *_, **__: backend, spare=True, models=models)


@contextmanager
def serving_first(engine: FakeVllm, moe: Moe) -> Iterator[Engine]:
    """An engine of ours that answers with the first blend."""
    with before(engine, moe) as backend:
        served = serving(backend, moe)
        served.swap(BLENDS[0])
        yield served


def right(engine: Engine, moe: Moe) -> bool:
    """Whether the first blend answers as it does with transformers."""
    return answers(engine) == transformers_answers(moe, BLENDS[0])


def relayed(engine: Engine, *, place: int = 0, **body: Any) -> list[dict[str, Any]]:
    """What an engine says to a request, as it says it: one answer, or the events of a stream."""
    heard: list[dict[str, Any]] = []
    with engine.using(engine.panel, place) as live:
        live.backend.relay("/v1/completions", body, heard.append).result(60)
    return heard


def answers(engine: Engine, *, place: int = 0, limit: int = 7) -> list[tuple[int, ...]]:
    """Tokens that a model writes for the prompts, without the token that ends them."""
    (said,) = relayed(engine, place=place, prompt=PROMPTS, max_tokens=limit, temperature=0, return_token_ids=True)
    return [tuple(token for token in choice["token_ids"] if token != 1) for choice in said["choices"]]


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
