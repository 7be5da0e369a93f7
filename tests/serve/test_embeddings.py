"""A sentence encoder: merged, served as OpenAI's embeddings, and exported as sentence-transformers reads it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

import tanbr
from merge.sources.tiny_dense import build as build_dense
from merge.sources.tiny_dense import tuned
from serve.text_model import WORDS, write_tokenizer
from serve.web.live import client, live, refusal
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.settings import parse
from tanbr.moe.text import TextEncoder
from tanbr.serve.build import build

SETTINGS: dict[str, Any] = {"slot_seconds": 3600, "threads": 1, "workers": 1}
TEXTS = ["w1 w2 w3", "w9", "w5 w5 w5 w5 w5 w5"]
BLEND = [0.25, 0.75]


def encoder(folder: Path, *, kinds: tuple[str, ...] = ("Pooling", "Normalize"), mode: str = "mean_tokens") -> Any:
    """A tiny BERT without a head and two experts of it, with how to pool; what `build` takes."""
    model = build_dense("BertForSequenceClassification", vocab_size=len(WORDS)).bert
    model.save_pretrained(folder / "base")
    write_tokenizer(folder / "base")
    names = {"Transformer": ""} | {kind: f"{number}_{kind}" for number, kind in enumerate(kinds, start=1)}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in names.items()]
    (folder / "base" / "modules.json").write_text(json.dumps(modules))
    (folder / "base" / "1_Pooling").mkdir()
    (folder / "base" / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    return folder / "base", [
        tuned(model, folder / str(k), seed=k, where=lambda name: "dense" in name) for k in range(2)
    ]


@torch.inference_mode()
def expected(moe: Any, *, mean: bool, normalised: bool) -> Any:
    """Vectors of the texts one by one, by transformers: no padding, no mask."""
    model, encode = moe.dense(BLEND).eval(), TextEncoder.of(moe.path, vocab_size=len(WORDS))
    hidden = [model(**encode([text])).last_hidden_state[0] for text in TEXTS]
    vectors = torch.stack([one.mean(dim=0) if mean else one[0] for one in hidden])
    return torch.nn.functional.normalize(vectors) if normalised else vectors


@pytest.mark.parametrize(
    ("kinds", "mode"), [(("Pooling", "Normalize"), "mean_tokens"), (("Pooling",), "cls_token")], ids=["mean", "first"]
)
def test_openais_client_gets_the_vectors_that_transformers_makes_and_rewards_count(
    kinds: tuple[str, ...], mode: str, tmp_path: Path
) -> None:
    base, experts = encoder(tmp_path, kinds=kinds, mode=mode)
    config = parse({"serve": SETTINGS | {"blend": BLEND}}).serve
    service = build(base, experts=experts, config=config, state=tmp_path / "state")
    moe = tanbr.open(base, experts=experts)
    want = expected(moe, mean=mode == "mean_tokens", normalised="Normalize" in kinds).numpy()
    with live(service) as url, client(url) as http, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as ai:
        for how in ({}, {"encoding_format": "float"}):  # without a word, its client asks for base64
            done: Any = ai.embeddings.create(model="base", input=TEXTS, **how)  # type: ignore[arg-type]
            np.testing.assert_allclose([one.embedding for one in done.data], want, atol=1e-5)
            assert [one.index for one in done.data] == [0, 1, 2]
            assert done.usage.prompt_tokens == done.usage.total_tokens == 3 + 1 + 6
        ids = [one.request_id for one in done.data]
        given = [{"request_id": name, "reward": 1} for name in ids]
        assert http.post("/v1/feedback", json={"feedback": given}).json()["accepted"] == 3
        assert http.get("/v1/state").json()["model"]["kind"] == "encoder"
        assert refusal(http.post("/v1/classify", json={})) == "the model here embeds: use /v1/embeddings"
        for odd, says in (({"input": []}, "input"), ({"input": [[1, 2]]}, "input"), ({"dimensions": 3}, "dimensions")):
            answer = http.post("/v1/embeddings", json={"model": "base", "input": "w1"} | odd)
            assert answer.status_code == 422
            assert refusal(answer).startswith(says)
        assert http.post("/v1/embeddings", json={"model": "other", "input": "w1"}).status_code == 404
    exported = moe.export(BLEND, tmp_path / "out")
    assert (exported / "modules.json").is_file()
    assert (exported / "1_Pooling" / "config.json").is_file()


@pytest.mark.parametrize(
    ("changes", "settings", "error", "says"),
    [
        ({"mode": "max_tokens"}, {}, CheckpointError, "pools in a way that tanbr does not"),
        ({"kinds": ("Pooling", "Dense")}, {}, CheckpointError, "Dense"),
        ({"kinds": ()}, {}, CheckpointError, "no modules.json that says how to pool"),
        ({}, {"precision": "int8"}, InputError, "vectors have none; use fp32"),
    ],
)
def test_what_makes_no_vector_is_one_sentence(
    changes: Any, settings: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    base, experts = encoder(tmp_path, **changes)
    with pytest.raises(error, match=says):
        build(base, experts=experts, config=parse({"serve": SETTINGS | settings}).serve, state=tmp_path / "state")
