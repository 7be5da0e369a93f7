from queue import SimpleQueue

import numpy as np

from tanbr.serve.messages import Answers, Broken, Message, Outbox


def test_a_plain_queue_is_an_outbox_and_messages_keep_what_they_say() -> None:
    queue: SimpleQueue[Message] = SimpleQueue()
    outbox: Outbox = queue
    said = Answers(3, 7, 0.0, (b"id",), ("text",), np.ones((1, 2)), np.ones(1), None)
    outbox.put(said)
    outbox.put(Broken(3, 7))
    assert queue.get() is said
    assert queue.get() == Broken(version=3, slot=7)
