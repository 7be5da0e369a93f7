"""Spans of requests for OpenTelemetry (extra `otel`). Unless OTEL_TRACES_EXPORTER is set, nothing of it is imported.

A request's span begins with its head and ends with its answer. The code that works for the request adds what it knows.
"""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from importlib.metadata import entry_points, version
from typing import Any, TypeAlias

from tanbr.errors import ConfigError
from tanbr.types import FloatArray

Span: TypeAlias = Any  # OpenTelemetry's, which may not be installed

EXPORTER = "OTEL_TRACES_EXPORTER"
OPERATIONS = {
    "/v1/classify": "classify", "/v1/embeddings": "embeddings", "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
}  # fmt: skip
_tracer: Any = None
_current: ContextVar[Span | None] = ContextVar("span", default=None)  # a request has a task, and so a context


def start() -> None:
    """Send spans from now on to the exporter that OTEL_TRACES_EXPORTER names, if it names one."""
    global _tracer
    name = os.environ.get(EXPORTER, "none")
    if name == "none":
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(f"{EXPORTER} is {name}, which needs pip install 'tanbr[otel]'; or set it to none") from None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # nobody else has set one up
        found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
        if not found:
            raise ConfigError(
                f"no exporter of spans is called {name}; install it, or set {EXPORTER} to otlp_proto_http"
            )
        os.environ.setdefault("OTEL_SERVICE_NAME", "tanbr")
        provider = TracerProvider()  # sends what is left when the process ends
        provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
        trace.set_tracer_provider(provider)
    _tracer = trace.get_tracer("tanbr", version("tanbr"))


def begin(route: str, model: str, headers: Mapping[str, str]) -> Span | None:
    """Begin the span of a request to a model, below the span that its `traceparent` names."""
    if _tracer is None or route not in OPERATIONS:
        return None
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    said = {"gen_ai.operation.name": OPERATIONS[route], "gen_ai.provider.name": "tanbr", "gen_ai.request.model": model}
    name = f"{OPERATIONS[route]} {model}"
    span = _tracer.start_span(name, context=extract(headers), kind=SpanKind.SERVER, attributes=said)
    _current.set(span)
    return span


def current() -> Span | None:
    """Give the span of the request that this code runs for."""
    return _current.get()


def answered(span: Span, *, place: int, merge_version: int, seconds: float, posterior: FloatArray | None) -> None:
    """Say which model answered, after how many seconds, and what was believed of the first text's task (V,)."""
    said = {"tanbr.merge_version": merge_version, "tanbr.model": place, "tanbr.engine_seconds": seconds}
    span.set_attributes(said | ({} if posterior is None else {"tanbr.task_posterior": posterior.tolist()}))


def counted(span: Span, request_id: str, usage: Mapping[str, int]) -> None:
    """Say the first text's request id, and the tokens that were read and written, as far as they are known."""
    names = {"gen_ai.usage.input_tokens": "prompt_tokens", "gen_ai.usage.output_tokens": "completion_tokens"}
    counts = {name: usage[theirs] for name, theirs in names.items() if usage.get(theirs) is not None}
    span.set_attributes({"gen_ai.response.id": request_id} | counts)


def end(span: Span, status: int) -> None:
    """End the span of a request that was answered with this HTTP status."""
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
    span.end()


def headers_of(span: Span | None) -> dict[str, str]:
    """Give the headers that put an engine's own spans below a request's."""
    if span is None:
        return {}
    from opentelemetry.propagate import inject
    from opentelemetry.trace import set_span_in_context

    found: dict[str, str] = {}
    inject(found, context=set_span_in_context(span))
    return found
