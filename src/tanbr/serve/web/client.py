"""A client of the server, for the command line and for anybody's scripts."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from tanbr.errors import TanbrError
from tanbr.types import Text

BULK = 500  # pieces of feedback in a request


class ServerError(TanbrError):
    """The server was not reached, or refused."""


class Client:
    """Talks to one server; waits and tries again, for `patience` seconds, when it says that it is too busy."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0, patience: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=timeout)
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ServerError(f"{url!r} is not the address of a server: {error}") from None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def classify(self, texts: Sequence[Text]) -> dict[str, Any]:
        """Classify texts, or pairs of texts."""
        return self._ask("POST", "/v1/classify", {"inputs": list(texts)})

    def complete(self, prompts: Sequence[str], *, model: str) -> dict[str, Any]:
        """Have an answer written to each prompt."""
        return self._ask("POST", "/v1/completions", {"model": model, "prompt": list(prompts)})

    def feedback(self, items: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Send feedback, however much; how many were accepted, repeated, unknown."""
        total = {"accepted": 0, "repeated": 0, "unknown": 0}
        for start in range(0, len(items), BULK):
            receipt = self._ask("POST", "/v1/feedback", {"feedback": [dict(item) for item in items[start:][:BULK]]})
            for outcome in total:
                total[outcome] += receipt[outcome]
        return total

    def state(self) -> dict[str, Any]:
        """What the server does now."""
        return self._ask("GET", "/v1/state")

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        give_up = time.monotonic() + self._patience
        while True:
            try:
                response = self._http.request(method, path, json=body)
            except httpx2.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise ServerError(f"cannot reach {self.url} ({reason}); is `tanbr serve` running there?") from None
            pause = response.headers.get("retry-after", "")
            if not pause.isdigit() or time.monotonic() + int(pause) > give_up:
                return _read(response, self.url)
            time.sleep(int(pause))


def _read(response: httpx2.Response, url: str) -> dict[str, Any]:
    try:
        value = response.json()
        if response.is_success:
            return dict(value)
        sentence = str(value["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise ServerError(f"{url} does not answer like a tanbr server (status {response.status_code})") from None
    raise ServerError(f"{url} refused: {sentence}")
