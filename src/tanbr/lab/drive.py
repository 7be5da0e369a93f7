"""Drive a server with a stream of requests: send the texts, score the answers by the truth, send the rewards."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.lab.tasks.traffic import Traffic
from tanbr.serve.web.client import Client
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.tasks.text_to_text import NO_ANSWER, prompt, understood
from tanbr.types import FloatArray, TaskMix


@dataclass(frozen=True, eq=False)
class Drive:
    """What came of one slot of the stream (the server's own slots need not be the same)."""

    mix: TaskMix  # (V,) the true mix, which the server was not told
    rewards: FloatArray  # (n,) of each request
    seconds: float  # to answer all of them
    accepted: int  # rewards that the server took
    state: dict[str, Any]  # of the server, afterwards


def drive(
    client: Client, stream: Traffic, *, space: LabelSpace, batch: int = 16, rate: float | None = None
) -> Iterator[Drive]:
    """Send a stream slot by slot, `batch` texts in a request and `rate` a second, then feedback that names no task."""
    model = client.state()["model"]
    pace = Pace(rate)
    for slot in stream:
        started = time.perf_counter()
        names: list[str] = []
        answers: list[float] = []
        for start in range(0, len(slot.rows), batch):
            rows = slot.rows[start : start + batch]
            pace.wait(len(rows))
            if model["kind"] == "classifier":
                outputs = client.classify([row.text for row in rows])["outputs"]
                answers += [read_answer(one, row, space) for one, row in zip(outputs, rows, strict=True)]
            else:
                outputs = client.complete([prompt(row.text) for row in rows], model=model["name"])["choices"]
                pairs = zip(outputs, rows, strict=True)
                answers += [understood(one["text"], row, space.task(row.task)) for one, row in pairs]
            names += [one["request_id"] for one in outputs]
        seconds = time.perf_counter() - started
        rewards = space.rewards(slot.rows, np.array(answers))
        items = [{"request_id": name, "reward": float(r)} for name, r in zip(names, rewards, strict=True)]
        yield Drive(slot.mix, rewards, seconds, client.feedback(items)["accepted"], client.state())


class Pace:
    """Waits before texts are sent, so that a stream has at most `rate` texts a second; None never waits."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next = rate, time.monotonic()

    def wait(self, texts: int) -> None:
        """Return when so many texts may be sent."""
        if self._rate is not None:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = max(self._next, time.monotonic()) + texts / self._rate


def read_answer(output: dict[str, Any], row: Row, space: LabelSpace) -> float:
    """Read a classifier's answer to a row as `LabelSpace.answers` would; NO_ANSWER for a label of another task."""
    task = space.task(row.task)
    if task.graded:
        return float(output.get("grades", {}).get(task.name, NO_ANSWER))
    return understood(output["label"], row, task)


def summary(drives: Sequence[Drive], *, tail: int) -> dict[str, Any]:
    """Say what the stream earned, over all slots and over the last ones."""
    means = np.array([drive.rewards.mean() for drive in drives])
    requests, seconds = sum(len(drive.rewards) for drive in drives), sum(drive.seconds for drive in drives)
    return {
        "slots": len(drives),
        "requests": requests,
        "reward": float(means.mean()),
        "tail": tail,
        "tail_reward": float(means[-tail:].mean()),
        "texts_per_second": requests / seconds,
        "feedback_accepted": sum(drive.accepted for drive in drives),
        "merge_version": drives[-1].state["merge_version"],
        "slot": drives[-1].state["slot"],
        "rewards": means.tolist(),
    }
