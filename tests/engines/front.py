"""`tanbr serve --engine …` as a process, and what is asked of it: the same before a fake engine and a real one."""

import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from cli.running import TANBR, environment
from engines.asking import transformers_answers
from processes import started
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder

ADMIN_TOKEN = "the-operator-of-the-test"


@dataclass
class Front:
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, path: str, body: Any = None) -> httpx2.Response:
        method = "GET" if body is None and not path.startswith("/v1/admin") else "POST"
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=120)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=ADMIN_TOKEN, max_retries=0)


@contextmanager
def front(folder: Path, checkpoint: Path, engine: str, url: str, *arguments: str, **variables: str) -> Iterator[Front]:
    """Run the server until the block ends."""
    command = [*TANBR, "serve", checkpoint, "--engine", engine, "--engine-url", url, "--port", "0", "--force"]
    variables = {"TANBR_ADMIN_TOKEN": ADMIN_TOKEN} | variables
    with (
        (folder / "log").open("ab") as log,
        started(
            [*command, "--state", folder / "state", "--slot-seconds", "3600", *arguments],
            stdout=subprocess.PIPE, stderr=log, cwd=folder, env=environment(**variables),
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout
            found = next((one[0] for line in process.stdout if (one := re.search(r"http://\S+", line))), None)
            assert found, (folder / "log").read_text()
            made = Front(found, process, folder / "log")
            ready(made)
            yield made
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def ready(server: Front) -> None:
    """Wait until requests are answered."""
    while server.process.poll() is None:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{server.url}/readyz").is_success:
                return
        time.sleep(0.05)
    raise AssertionError(server.log.read_text())


def after_a_kill(
    server: Front,
    engine: Any,
    moe: Moe | None,
    blend: Sequence[float],
    prompts: Sequence[str],
    *,
    limit: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[str]:
    """Kill the engine under a server: a 503, and the version before when it is back; its answers."""
    pinned = server.ask("/v1/admin/pin", {"blend": list(blend)}).json()
    with server.client() as client:
        how = greedy(moe, limit=limit) | {"prompt": list(prompts)}
        engine.kill()
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(stream=stream, **how)
            assert refused.value.status_code == 503
            assert int(refused.value.response.headers["retry-after"]) >= 1
        meanwhile()
        assert server.ask("/v1/state").json()["merge_version"] == pinned["merge_version"]
        engine.start()
        ready(server)
        answer: Any = client.completions.create(**how)
    assert answer.merge_version == pinned["merge_version"]
    return texts(answer)


def after_a_hang(server: Front, engine: Any) -> None:
    """Stop the engine under a server: 503, once that is found out; and it goes on when the engine does."""
    asked = {"model": "tanbr", "prompt": "w", "max_tokens": 1}
    os.killpg(engine.process.pid, signal.SIGSTOP)
    try:
        while httpx2.get(f"{server.url}/readyz").is_success:
            time.sleep(0.2)
        refused = server.ask("/v1/completions", asked)
        assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
    finally:
        os.killpg(engine.process.pid, signal.SIGCONT)
    ready(server)
    assert server.ask("/v1/completions", asked).is_success


def greedy(moe: Moe | None, *, limit: int) -> dict[str, Any]:
    """Ask for what transformers writes: vLLM, for which the model is named, also ends at its tokenizer's last token."""
    ends = {} if moe is None else {"ignore_eos": True, "stop_token_ids": [moe.plan.config().eos_token_id]}
    return {"model": "tanbr", "max_tokens": limit, "temperature": 0, "extra_body": ends}


def texts(answer: Any) -> list[str]:
    """What was answered, but for the space that an engine may begin a text with."""
    return [choice.text.strip() for choice in answer.choices]


def texts_of(moe: Moe, blend: Sequence[float], prompts: Sequence[str], *, limit: int, model: Any = None) -> list[str]:
    """What transformers writes with a merge, as text; with a `model` that has it already, or our own."""
    answers = transformers_answers(moe, blend, prompts, limit=limit, model=model)
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    return [encode.tokenizer.decode(list(tokens), skip_special_tokens=True) for tokens in answers]


def swaps(
    server: Front,
    moe: Moe,
    prompts: Sequence[str],
    *,
    count: int,
    limit: int,
    blended: Callable[[Sequence[float]], Any] = lambda _: None,
) -> tuple[int, int]:
    """Pin one blend after the other; each prompt is asked twice before and after, by OpenAI's client.

    What is asked twice comes from the engine's prefix cache the second time. `blended` makes the model of a blend whose
    answers are expected, our own merge unless it is given. How many answers came, and how many were right.
    """
    blends = [[1.0, 0, 0, 0], [0, 0, 0.5, 0.5], [0.25] * 4, [0, 1.0, 0, 0], [0.4, 0.3, 0.2, 0.1]]
    equal = asked = 0
    with server.client() as client:
        how = greedy(moe, limit=limit)
        for number in range(count):
            blend = blends[number % len(blends)]
            pinned = server.ask("/v1/admin/pin", {"blend": blend}).json()
            expected = texts_of(moe, blend, prompts, limit=limit, model=blended(blend))
            for _ in range(2):
                done: Any = client.completions.create(prompt=list(prompts), **how)
                assert done.merge_version == pinned["merge_version"]
                asked += len(prompts)
                equal += sum(one == text for one, text in zip(texts(done), expected, strict=True))
            pieces: Any = client.completions.create(prompt=prompts[0], stream=True, **how)
            asked += 1
            equal += "".join(piece.choices[0].text for piece in pieces if piece.choices).strip() == expected[0]
    return asked, equal


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    told = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 4) for name, value in told.items()}
