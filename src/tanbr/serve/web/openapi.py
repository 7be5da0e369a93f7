"""The OpenAPI document, with what only the running server knows: limits, labels, tasks, tokens and refusals."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tanbr.serve.records import ServiceInfo
from tanbr.serve.web.auth import ADMIN, ADMIN_TOKEN, OPEN, TOKEN, Tokens
from tanbr.serve.web.bodies import ErrorResponse
from tanbr.serve.web.config import HttpConfig

REFUSALS = {  # status → what it means, and which operations may refuse so
    400: ("the request is not HTTP/1.1, or its body is not strict JSON", "any"),
    401: ("the token is missing or wrong", "guarded"),
    403: ("administration is off", "admin"),
    404: ("the model here is another", "model"),
    408: ("the request took too long to arrive", "any"),
    413: ("the body is too large", "body"),
    415: ("the body is not application/json", "body"),
    421: ("the Host header names another server", "any"),
    422: ("a value is not what this path takes", "asks"),
    429: ("too many requests; Retry-After says when to try again", "any"),
    431: ("the head is too large", "any"),
    500: ("a fault of the server", "any"),
    503: ("starting, stopping, or not able to do this now", "any"),
    504: ("there was no answer in time", "served"),
}
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
            admin, posted = path.startswith(ADMIN), method == "post"
            guarded = admin or (tokens.general is not None and not path.startswith(OPEN))
            if guarded:
                operation["security"] = [{"admin": []}] if admin else [{"token": []}, {"admin": []}]
            applies = {
                "any": True,
                "guarded": guarded,
                "admin": admin,
                "body": posted,
                "asks": posted or "parameters" in operation,
                "served": path in SERVED,
                "model": path in (*SERVED[1:], "/v1/models/{name}"),
            }
            _write_refusals(operation["responses"], {kind for kind, holds in applies.items() if holds})
    return document


def _write_refusals(responses: dict[str, Any], kinds: set[str]) -> None:
    responses.pop("422", None)
    for status, (says, kind) in REFUSALS.items():
        if kind in kinds:
            content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
            responses[str(status)] = {"description": says, "content": content}
            if status in (429, 503, 504):
                wait = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
                responses[str(status)]["headers"] = {"Retry-After": wait}


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
