"""Requests that an engine answers as they are. Ours are the model's name, the ids and the merge version."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tanbr.serve import tracing
from tanbr.serve.decode import NotFinite
from tanbr.serve.engine import Engine
from tanbr.serve.jobs import Part, Replies
from tanbr.serve.panel import NOT_CHOSEN, VERSION, Live, Panel
from tanbr.serve.records import Observer, ServiceError
from tanbr.serve.relay import Call, Conversations


@dataclass(frozen=True, eq=False)
class Relays:
    """Sends requests to an engine; what comes back is told and passed on in the engine's own thread."""

    engine: Engine
    replies: Replies
    conversations: Conversations
    observer: Observer
    go_back: Callable[[list[Part], Live], None]  # asks again what a broken merge version did not answer

    def send(self, part: Part, call: Call, panel: Panel) -> None:
        """Send a part to the model that is best for it, or that the client or the conversation wants."""
        try:
            self._send(part, call, panel)
        except Exception as error:  # an engine that is lost, for one
            part.fail(error)

    def _send(self, part: Part, call: Call, panel: Panel) -> None:
        with ExitStack() as hold:
            version = self._version(call, panel.models[part.place].version)
            if call.expert is not None:
                live = self.engine.expert(call.expert)
            else:
                live = hold.enter_context(self.engine.using(panel, part.place, version))
            if call.conversation and call.chosen:
                self.conversations.note(call.conversation, live.version)
            credited = live if call.chosen else replace(live, place=NOT_CHOSEN, slot=self.engine.live.slot)
            passage = Passage(part, call, credited, self.replies)
            answering = live.backend.relay(call.path, passage.body, passage.hear, tracing.headers_of(part.job.span))
            held = hold.pop_all()
        answering.add_done_callback(lambda _: held.close())
        answering.add_done_callback(partial(self._ended, passage, live))
        part.job.future.add_done_callback(lambda _: answering.cancel())  # of no effect unless the client has left

    def _version(self, call: Call, chosen: int) -> int:
        """Choose the version: what the client has named, what its conversation has, or what is best for the text."""
        if call.version is not None:
            return call.version
        if not call.conversation:
            return chosen
        had = None if call.begins else self.conversations.version(call.conversation)
        stays = had in self.engine.versions
        self.observer.conversation("begun" if had is None else "kept" if stays else "moved")
        return had if had is not None and stays else chosen

    def _ended(self, passage: "Passage", live: Live, future: "Future[None]") -> None:
        part, error = passage.part, None if future.cancelled() else future.exception()
        part.left = True
        try:
            if isinstance(error, NotFinite) and passage.call.chosen:
                part.left = False
                self.go_back([part], live)
            elif error is not None or passage.left:
                part.fail(error or ServiceError("the engine broke an answer off"))
            else:
                part.job.take(part.rows, passage.shown, live.version, [passage.rest] * len(part.rows))
        except Exception as raised:
            part.fail(raised)


class Passage:
    """What one model answers of a request: what goes to the engine, and what of its answer goes to the client."""

    def __init__(self, part: Part, call: Call, live: Live, replies: Replies) -> None:
        """Take the model that the answers are credited to."""
        self.part, self.call, self._live, self._replies = part, call, live, replies
        self._ids = tuple(replies.ids.issue(live.slot, len(part.rows), place=live.place))
        self.shown = tuple(map(replies.ids.show, self._ids))
        self.left = len(part.rows)  # answers that the engine has not ended
        self.rest: dict[str, Any] = {}  # the whole answer, or the event after a stream's last choice

    @property
    def body(self) -> dict[str, Any]:
        """Give what the engine is asked."""
        call, rows, body = self.call, self.part.rows, dict(self.call.body)
        if len(rows) < len(self.part.job.texts):
            body["prompt"] = [call.prompts[row // call.n] for row in rows[:: call.n]]
        return body

    def hear(self, event: dict[str, Any]) -> None:
        """Make an event of the engine's answer our own; the learner is told before the client gets the last one."""
        left = self.left
        self._take(event)
        if left and not self.left:
            self._replies.put([self.part], self._live, self._ids)
        if self.call.on_event is not None and event["choices"]:
            self.part.streamed = True
            self.call.on_event(event)
        else:
            self.rest = event

    def _take(self, event: dict[str, Any]) -> None:
        version = None if self._live.version < 0 else self._live.version
        for choice in event["choices"]:
            row = range(len(self.shown))[choice["index"]]
            choice |= {"index": self.part.rows[row], "request_id": self.shown[row], "merge_version": version}
            self.left -= choice["finish_reason"] is not None
        kind, name = str(event["id"]).partition("-")[0], self.call.name if version is None else f"{VERSION}{version}"
        event |= {"id": f"{kind}-{self.shown[0]}", "model": name, "merge_version": version}
