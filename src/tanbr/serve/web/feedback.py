"""The route that rewards come in by, and the name under which a client's feedback is weighed."""

import hashlib

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from tanbr.serve.records import Feedback
from tanbr.serve.web import requests, responses
from tanbr.serve.web.answering import answer
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import address_of
from tanbr.serve.web.limits import client_of
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi
from tanbr.serve.web.workers import Workers


def client_key(scope: Scope, tokens: Tokens, secret: bytes) -> str:
    """Name a request's client, opaquely: its address, and which of the server's own tokens it shows.

    Nothing that a client makes up is in it, so one address is one client (an operator at it is another).
    """
    said = f"{tokens.shown(Headers(scope=scope).get('authorization'))}\n{client_of(address_of(scope))}"
    return hashlib.blake2b(said.encode(), key=secret, digest_size=8).hexdigest()


def add_feedback(app: FastAPI, service: ServiceApi, config: HttpConfig, tokens: Tokens) -> None:
    """Add the route; a worker thread waits for the disk."""
    workers, secret = Workers("feedback", threads=8, waiting=64), service.client_secret

    @app.post("/v1/feedback", tags=["answers"], response_model=responses.FeedbackResponse)
    async def feedback(body: requests.FeedbackRequest, request: Request) -> Response:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        if len(body.feedback) > config.feedback:
            raise Refusal(422, f"feedback must have at most {config.feedback} items", param="feedback")
        items = [Feedback(**item.model_dump()) for item in body.feedback]
        client = client_key(request.scope, tokens, secret)
        receipt = await workers.run(lambda: service.feedback(items, client=client))
        counts = {"accepted": receipt.accepted, "repeated": receipt.repeated, "unknown": receipt.unknown}
        return answer(counts | {"outcomes": receipt.outcomes})
