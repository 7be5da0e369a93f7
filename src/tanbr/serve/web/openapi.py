"""The OpenAPI document, with what only the running server knows: limits, labels, tasks, tokens and refusals."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tanbr.serve.records import ServiceInfo
from tanbr.serve.web.auth import ADMIN, ADMIN_TOKEN, OPEN, TOKEN, Tokens
from tanbr.serve.web.bodies import ErrorResponse
from tanbr.serve.web.config import HttpConfig

ANY = {
    400: "the request is not HTTP/1.1",
    408: "the request took too long to arrive",
    421: "the Host header names another server",
    429: "too many requests; Retry-After says when to try again",
    431: "the head is too large",
    500: "a fault of the server",
    503: "starting, stopping, or not able to do this now",
}
WITH_BODY = {
    400: "the body is not strict JSON",
    413: "the body is too large",
    415: "the body is not application/json",
    422: "the body is not what this path takes",
}
WAITING = {504: "there was no answer in time"}
GUARDED = {401: "the token is missing or wrong"}
SERVED = ("/v1/classify", "/v1/completions", "/v1/chat/completions")
ABOUT = """One dense model, merged from the experts of a Mixture-of-Experts model, that follows its traffic.

Every answer carries a request id, for feedback, and the merge version that gave it. Every refusal is one sentence."""


def describe(app: FastAPI, info: ServiceInfo, config: HttpConfig, tokens: Tokens) -> None:
    """Have the application give the whole document at /openapi.json."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, info, config, tokens)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, info: ServiceInfo, config: HttpConfig, tokens: Tokens) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    error = ErrorResponse.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= error.pop("$defs") | {"ErrorResponse": error}
    _write_limits(schemas, info, config)
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": f"What the server has as {TOKEN}, if it has one."},
        "admin": {"type": "http", "scheme": "bearer", "description": f"What the server has as {ADMIN_TOKEN}."},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            admin = path.startswith(ADMIN)
            guarded = admin or (tokens.general is not None and not path.startswith(OPEN))
            if guarded:
                operation["security"] = [{"admin": []}] if admin else [{"token": []}, {"admin": []}]
            _write_refusals(operation, path, posted=method == "post", guarded=guarded, admin=admin)
    return document


def _write_refusals(operation: dict[str, Any], path: str, *, posted: bool, guarded: bool, admin: bool) -> None:
    asks = posted or "parameters" in operation
    refusals = (
        ANY
        | (WITH_BODY if posted else {})
        | ({422: "a parameter is not what this path takes"} if asks and not posted else {})
        | (GUARDED if guarded else {})
        | ({403: "administration is off"} if admin else {})
        | (
            {404: "the model here is another"}
            if path in ("/v1/completions", "/v1/chat/completions", "/v1/models/{name}")
            else {}
        )
        | (WAITING if path in SERVED else {})
    )
    operation["responses"].pop("422", None)
    for status, says in sorted(refusals.items()):
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
        operation["responses"][str(status)] = {"description": says, "content": content}
        if status in (429, 503, 504):
            operation["responses"][str(status)]["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
            }


def _write_limits(schemas: dict[str, Any], info: ServiceInfo, config: HttpConfig) -> None:
    """Put in what `bodies.py` cannot know; a schema is there only if the model's kind uses it."""
    labels, tasks = list(info.labels), list(info.tasks)
    text = {"maxLength": config.text_chars}
    if "ClassifyRequest" in schemas:
        fields = schemas["ClassifyRequest"]["properties"]
        fields["inputs"]["maxItems"] = config.inputs
        one, pair = fields["inputs"]["items"]["oneOf"]
        one |= text
        pair["items"] |= text
        fields["labels"]["anyOf"][0]["items"] = {"type": "string", "enum": labels}
        fields["task"]["anyOf"][0]["enum"] = tasks
        schemas["ClassifyRequest"]["examples"][0]["labels"] = labels[:2]
    if "CompletionRequest" in schemas:
        fields = schemas["CompletionRequest"]["properties"]
        one, several = fields["prompt"]["oneOf"]
        one |= text
        several["items"] |= text
        several["maxItems"] = config.inputs
        fields["max_tokens"]["anyOf"][0]["maximum"] = info.max_tokens
        fields["n"]["anyOf"][0]["maximum"] = config.inputs
        fields["model"]["enum"] = [info.model]
        fields["task"]["anyOf"][0]["enum"] = tasks
        schemas["CompletionRequest"]["examples"][0]["model"] = info.model
    schemas["FeedbackRequest"]["properties"]["feedback"]["maxItems"] = config.feedback
    schemas["RewardFeedback"]["properties"]["task"]["anyOf"][0]["enum"] = tasks
    schemas["LabelFeedback"]["properties"]["task"]["enum"] = tasks
    schemas["PinBlend"]["properties"]["blend"] |= {"minItems": info.experts, "maxItems": info.experts}
