"""A server, OpenAI's own client, and feedback: all of it in one process, on the embedded model that writes.

The server is what `tanbr serve` runs. Clients ask over HTTP, say of each answer whether it was right, and the router
learns from that.
"""

import tempfile
import threading
import time
from pathlib import Path

import httpx2
from openai import OpenAI

from tanbr.lab.tasks import tiny
from tanbr.moe import embedded
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.server import Server, address_of, bind


def main(questions: int = 8) -> int:
    """Ask, give feedback on every answer; how much of it is in the server's store."""
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 1, seed=9)][:questions]
    with tempfile.TemporaryDirectory() as folder:
        service = build(embedded.path("t5"), config=ServeConfig(threads=1), state=Path(folder) / "state")
        http = HttpConfig(port=0)  # a free one
        socket = bind(http)
        running = Server(service, config=http, tokens=Tokens.read({}), metrics=Metrics(), loopback=True)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]})
        thread.start()  # it starts the service, and in the end stops it
        while not running.started:
            time.sleep(0.01)
        url = address_of(socket)[0]
        try:
            accepted = ask(url, [" ".join(row.text) if isinstance(row.text, tuple) else row.text for row in rows])
        finally:
            running.should_exit = True
            thread.join()
    print(f"{accepted} pieces of feedback are in the store")
    return accepted


def ask(url: str, prompts: list[str]) -> int:
    """Be a client."""
    with OpenAI(base_url=f"{url}/v1", api_key="none is asked for") as client:
        model = client.models.list().data[0].id
        done = client.completions.create(model=model, prompt=prompts, max_tokens=8)  # greedily
        for prompt, choice in zip(prompts, done.choices, strict=True):
            print(f"{prompt[:60]!r} → {choice.text!r} ({choice.finish_reason})")
        drawn = client.completions.create(model=model, prompt=prompts[0], n=3, temperature=1.2, seed=7, max_tokens=8)
        print("three answers by chance:", [choice.text for choice in drawn.choices])
    given = [  # here whatever was written is good; your clients know better
        {"request_id": choice.model_extra["request_id"], "reward": 1.0 if choice.text else 0.0}
        for choice in [*done.choices, *drawn.choices]
    ]
    answer = httpx2.post(f"{url}/v1/feedback", json={"feedback": given}).json()
    return int(answer["accepted"])


if __name__ == "__main__":
    main()
