"""`kill -9` at any instant: nothing acknowledged is lost, nothing counts twice, the router is the saved one."""

import sys
from pathlib import Path
from typing import Any

from processes import finished
from serve.serving import Ledger, answer, service

# Forks a server, lets it run for a moment, kills it; prints how much feedback was acknowledged. Imports only once.
PROGRAM = """
import os, random, signal, sys, time
from pathlib import Path
from serve.serving import Ledger, TEXTS, service
from tanbr.serve.records import Feedback

def serve():
    live = service(Path(sys.argv[1]), Path(sys.argv[2]), router=Ledger(), slot_requests=8, rewards={"settle_slots": 0})
    live.start()
    while True:
        ids = live.submit(TEXTS[:4]).result().request_ids
        os.write(out, b"+" * live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in ids]).accepted)

rng, acknowledged = random.Random(0), 0
for _ in range(6):
    into, out = os.pipe()
    child = os.fork()
    if not child:
        serve()
    os.close(out)
    acknowledged += len(os.read(into, 1))
    time.sleep(rng.random() * 0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while taken := os.read(into, 65536):
        acknowledged += len(taken)
print(acknowledged)
"""


def test_what_was_acknowledged_is_told_exactly_once_whenever_the_process_dies(tmp_path: Path, taught: Path) -> None:
    service(tmp_path / "first", taught)  # teaches the monitor, once
    state = tmp_path / "state"
    done = finished([sys.executable, "-c", PROGRAM, state, taught], cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    acknowledged = int(done.stdout)
    live = service(state, taught, router=Ledger())
    live.start()
    acknowledged += answer(live, 4)
    for _ in range(3):
        live.end_slot()
    router: Any = live.learner.router
    stored = len(live.store.feedback(after=0))
    live.stop()
    assert router.told == stored  # each once
    assert acknowledged <= stored <= acknowledged + 6 * 4  # at most what was on its way back when the process died
    assert len(router.open) <= 2
