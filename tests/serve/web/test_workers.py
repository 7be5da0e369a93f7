import threading

import anyio
import pytest

from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.workers import Workers


def test_beyond_the_line_work_is_refused() -> None:
    let_go, results = threading.Event(), list[str]()
    workers = Workers("feedback", threads=1, waiting=2)

    async def one() -> None:
        try:
            await workers.run(let_go.wait)
            results.append("done")
        except Refusal as refusal:
            results.append(str(refusal.detail))
            let_go.set()

    async def all_at_once() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)

    anyio.run(all_at_once)
    assert results == ["too much feedback is waiting already", "done", "done", "done"]


def test_what_the_work_raises_is_raised() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        anyio.run(Workers("x", threads=1, waiting=1).run, work)
