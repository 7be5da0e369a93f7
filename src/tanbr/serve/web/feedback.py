"""The route that rewards come in by, and the name under which a client's feedback is weighed."""

import hashlib
import secrets

from fastapi import FastAPI, Request, Response
from starlette.types import Scope

from tanbr.serve.records import Feedback
from tanbr.serve.web import requests, responses
from tanbr.serve.web.answering import answer
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import address_of
from tanbr.serve.web.limits import client_of
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi
from tanbr.serve.web.workers import Workers


class ClientKeys:
    """Opaque keys of clients: the same for the same token and address, and of no use to whoever reads the store."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(16)  # of this process, unless several must give the same keys

    def of(self, scope: Scope, authorization: str) -> str:
        """Give the key of a request's client. The address counts, too: a server has one token for all its clients."""
        said = f"{authorization}\n{client_of(address_of(scope))}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(said, key=self._secret, digest_size=8).hexdigest()


def add_feedback(app: FastAPI, service: ServiceApi, config: HttpConfig, secret: bytes | None = None) -> None:
    """Add the route; a worker thread waits for the disk."""
    workers, keys = Workers("feedback", threads=8, waiting=64), ClientKeys(secret)

    @app.post("/v1/feedback", tags=["answers"], response_model=responses.FeedbackResponse)
    async def feedback(body: requests.FeedbackRequest, request: Request) -> Response:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        if len(body.feedback) > config.feedback:
            raise Refusal(422, f"feedback must have at most {config.feedback} items", param="feedback")
        items = [Feedback(**item.model_dump()) for item in body.feedback]
        client = keys.of(request.scope, request.headers.get("authorization", ""))
        receipt = await workers.run(lambda: service.feedback(items, client=client))
        counts = {"accepted": receipt.accepted, "repeated": receipt.repeated, "unknown": receipt.unknown}
        return answer(counts | {"outcomes": receipt.outcomes})
