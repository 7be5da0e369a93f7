import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.fake_engine import FakeLlamaCpp
from serve.serving import Ledger
from serve.serving import service as real_service
from serve.web.live import client, live, wait_for
from tanbr.engines import engine_builder
from tanbr.errors import ConfigError
from tanbr.merge import Moe
from tanbr.serve import tracing
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig

trace = pytest.importorskip("opentelemetry.sdk.trace")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What is exported, as soon as a span ends."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def test_a_request_is_a_span_below_its_clients_that_says_who_answered(spans: Any, tmp_path: Path, taught: Path) -> None:
    service = real_service(tmp_path, taught, router=Ledger())
    with live(service) as url, client(url) as http:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        texts = ["a fine film", "is it a question"]
        answer = http.post("/v1/classify", json={"inputs": texts}, headers=headers).json()
        assert http.post("/v1/classify", json={"inputs": []}).status_code == 422
        assert http.get("/v1/state").is_success
        wait_for(lambda: len(spans.get_finished_spans()) == 2)
    done, refused = spans.get_finished_spans()
    assert (f"{done.context.trace_id:032x}", f"{done.parent.span_id:016x}") == (TRACE, PARENT)
    said = dict(done.attributes)
    assert said.pop("tanbr.engine_seconds") >= 0
    assert said.pop("gen_ai.usage.input_tokens") > len(texts)
    assert said == {
        "gen_ai.operation.name": "classify",
        "gen_ai.provider.name": "tanbr",
        "gen_ai.request.model": service.info.model,
        "gen_ai.response.id": answer["outputs"][0]["request_id"],
        "http.response.status_code": 200,
        "tanbr.merge_version": answer["merge_version"],
        "tanbr.model": 0,
    }
    assert refused.attributes["http.response.status_code"] == 422


def test_nothing_is_traced_unless_it_is_asked_for_and_an_exporter_that_is_missing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(tracing.EXPORTER, raising=False)
    tracing.start()
    assert tracing.begin("/v1/classify", "model", {}) is tracing.current() is None
    assert tracing.headers_of(None) == {}
    monkeypatch.setenv(tracing.EXPORTER, "pigeons")
    with pytest.raises(ConfigError, match="no exporter of spans is called pigeons"):
        tracing.start()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pigeons, which needs pip install 'tanbr\[otel\]'"):
        tracing.start()


def test_an_engine_gets_the_spans_traceparent_and_the_span_its_tokens(
    spans: Any, tmp_path: Path, adapters: Moe
) -> None:
    with FakeLlamaCpp(adapters.path, adapters.source.names).running() as engine:
        config = ServeConfig(engine="llamacpp", engine_urls=(engine.url,), slot_seconds=3600)
        service = build(
            adapters.path, experts=adapters.source.names, config=config, state=tmp_path / "state", force=True,
            backend=engine_builder(config),
        )  # fmt: skip
        with live(service) as url, client(url) as http:
            body = {"model": "tanbr", "prompt": "w1 w2", "max_tokens": 3}
            answer = http.post("/v1/completions", json=body).raise_for_status().json()
            wait_for(spans.get_finished_spans)
    (done,) = spans.get_finished_spans()
    (traced,) = engine.traced - {None}
    assert str(traced).split("-")[1:3] == [f"{done.context.trace_id:032x}", f"{done.context.span_id:016x}"]
    assert done.attributes["tanbr.merge_version"] == answer["merge_version"]
    assert done.attributes["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
