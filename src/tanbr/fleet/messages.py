"""What replicas elsewhere and the learner say to each other. Blends travel, weights never do."""

from dataclasses import dataclass, field

from tanbr.serve.config import ServeConfig
from tanbr.serve.ids import RequestIds
from tanbr.serve.lineage import MadeFor
from tanbr.serve.messages import Message
from tanbr.serve.panel import Assignment
from tanbr.serve.records import ServiceInfo
from tanbr.tasks.rows import Task
from tanbr.types import FloatArray


@dataclass(frozen=True, eq=False)
class Order:
    """What is to answer: it was written down and committed by the learner."""

    slot: int  # that answers are credited to; every order has a later one
    versions: tuple[int, ...]  # (G,)
    blends: FloatArray  # (G, K)
    assignment: Assignment | None = field(default=None, repr=False)  # of a panel's requests to its models


@dataclass(frozen=True, eq=False)
class Proposal:
    """What may be ordered next: to be merged, and not to answer."""

    number: int
    versions: tuple[int, ...]  # (G,)
    blends: FloatArray  # (G, K)


@dataclass(frozen=True)
class Hello:
    """A replica says who it is, and asks to be one of the fleet; also after a learner's restart."""

    member: str  # a name that no other replica has or had
    made_for: MadeFor  # its own checkpoint; without tasks
    at: int | None = None  # slot of the order that it follows; None: of none yet
    answering: bool = False


@dataclass(frozen=True, eq=False)
class Welcome:
    """All that a replica needs beside the checkpoint's files."""

    order: Order
    ids: RequestIds = field(repr=False)  # with the key that the learner knows its requests by
    config: ServeConfig
    info: ServiceInfo
    tasks: tuple[Task, ...]
    secret: bytes = field(repr=False)  # for the keys of clients: the same at every replica


@dataclass(frozen=True, eq=False)
class Report:
    """Where a replica is, and what it answered since the last report that was taken."""

    member: str
    at: int | None  # slot of the order that it follows
    answering: bool
    prepared: int | None = None  # number of the proposal that it has ready
    failed: tuple[int, str] | None = None  # number of the proposal that it cannot make ready, and why
    number: int = 0  # of the messages: sent again until they are taken
    messages: tuple[Message, ...] = ()
    waiting: int = 0  # texts that wait for an answer


@dataclass(frozen=True, eq=False)
class Reply:
    """What a replica is to do; nothing at all is to report again."""

    known: bool = True  # False: it must say hello first
    taken: int = 0  # number of the newest messages that the learner has
    order: Order | None = None  # to follow now
    proposal: Proposal | None = None  # to make ready
    answer: bool | None = None  # True: begin to answer; False: answer nobody until told; None: as before
