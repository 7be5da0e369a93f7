"""The service at a replica: it answers by itself, and has the learner do all the rest."""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from numpy.typing import ArrayLike

from tanbr.fleet.link import LearnerPort, Link
from tanbr.fleet.messages import Hello, Welcome
from tanbr.fleet.outbox import ReportBox
from tanbr.merge import Moe
from tanbr.router import TreeView
from tanbr.serve.engine import Engine
from tanbr.serve.lineage import made_for
from tanbr.serve.queue import Queue
from tanbr.serve.records import (
    Answered,
    Feedback,
    Generated,
    Observer,
    OnToken,
    Receipt,
    ServiceInfo,
    ServiceState,
    SlotView,
    Stopping,
    VersionView,
)
from tanbr.serve.sampling import Manner
from tanbr.serve.service import ANSWERING_SHARE, SWITCH_SECONDS
from tanbr.types import Text

JOIN = 30.0  # seconds, at most, that a start waits for the learner's word


class ReplicaService:
    """What the web needs of a service, at a replica of a fleet (`serve.web.service_api`)."""

    def __init__(
        self, moe: Moe, learner: LearnerPort, *, member: str, cpus: int = 1, observer: Observer | None = None
    ) -> None:
        """Ask the learner to be one of its fleet, and merge what answers there; not yet started.

        Raises StateError where the learner has another checkpoint, and LearnerGone where there is none.
        """
        self._learner = learner
        mine = made_for(moe, ())
        self.welcome = welcome = learner.hello(Hello(member, mine))
        config = welcome.config.model_copy(
            update={"workers": welcome.config.workers or cpus, "threads": welcome.config.threads or 1}
        )
        first, box = welcome.order, ReportBox()
        engine = Engine(
            moe,
            models=welcome.info.models,
            batch=config.batch,
            device=config.device,
            blend=first.blends[0],
            version=first.versions[0],
            slot=first.slot,
            spare=not config.low_memory,
            backend=config.backend,
            least_agreement=config.int8_agreement,
            max_length=config.max_length,
            merge_share=config.merge_share,
        )
        self._queue = Queue(engine, welcome.ids, tasks=welcome.tasks, config=config, outbox=box, observer=observer)
        self._link = Link(
            engine, learner, member=member, made_for=mine, box=box, depth=self._depth, renewed=self._renewed
        )
        self._link.follow(first)

    def _depth(self) -> int:
        return self._queue.depth

    def _renewed(self, welcome: Welcome) -> None:
        self.welcome.ids.take_over(welcome.ids)

    def start(self) -> None:
        """Take requests, as soon as the learner says that nothing newer answers elsewhere."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._queue.start()
        self._link.start()
        self._link.wait(JOIN)

    def stop(self, timeout: float = 30.0) -> bool:
        """Refuse new requests, answer what was accepted, tell the learner; whether it all was done in time."""
        answered = self._queue.stop(ANSWERING_SHARE * timeout)
        return self._link.stop((1.0 - ANSWERING_SHARE) * timeout) and answered

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._link.answering

    @property
    def client_secret(self) -> bytes:
        """What clients' keys are made with: the learner's."""
        return self.welcome.secret

    @property
    def info(self) -> ServiceInfo:
        """What is served."""
        return self.welcome.info

    def faults(self) -> tuple[str, ...]:
        """What is broken here, a sentence each; none if all is well."""
        return self._queue.faults() + self._link.faults()

    # --- answered here ------------------------------------------------------------------------------------------------

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]":
        """Answer texts with a classifier, as `Service.submit` does."""
        self._check_ready()
        return self._queue.submit(texts, task=task, labels=labels)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        manner: Manner = Manner(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]":
        """Write an answer to each prompt, as `Service.generate` does."""
        self._check_ready()
        return self._queue.generate(prompts, max_tokens=max_tokens, manner=manner, on_token=on_token, task=task)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> "Future[str]":
        """Make a prompt of a conversation, as `Service.chat` does."""
        return self._queue.chat(messages)

    def _check_ready(self) -> None:
        if not self.ready:
            raise Stopping("this replica is taking over the blend that answers; try again")

    # --- done by the learner ------------------------------------------------------------------------------------------

    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt:
        """Have the learner take in rewards; they are on its disk when this returns."""
        receipt: Receipt = self._learner.call("feedback", list(items), client=client)
        return receipt

    def state(self) -> ServiceState:
        """What the learner is at."""
        now: ServiceState = self._learner.call("state")
        return now

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first."""
        found: list[SlotView] = self._learner.call("slots", limit, before)
        return found

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""
        found: list[VersionView] = self._learner.call("versions")
        return found

    def tree(self) -> TreeView | None:
        """The router's search tree."""
        tree: TreeView | None = self._learner.call("tree")
        return tree

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a merge version by its number, until `unpin`."""
        version: int = self._learner.call("pin", target)
        return version

    def unpin(self) -> None:
        """Let the router choose again."""
        self._learner.call("unpin")

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier merge version until the slot ends."""
        number: int = self._learner.call("rollback", version)
        return number

    def end_slot(self) -> int:
        """End the slot now; the number of the next."""
        number: int = self._learner.call("end_slot")
        return number

    def metrics(self) -> bytes:
        """What Prometheus reads of the learner."""
        text: bytes = self._learner.call("metrics")
        return text
