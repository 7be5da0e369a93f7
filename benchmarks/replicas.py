"""Replicas on a real Ray: kills and restarts of the embedded model, what a second one is worth, what a thousand take.

    python benchmarks/replicas.py kills --out docs/results/ray/kills.json
    python benchmarks/replicas.py restart --out docs/results/ray/restart.json
    python benchmarks/replicas.py throughput --rounds 5 --seconds 10 --out docs/results/ray/throughput.json
    python benchmarks/replicas.py crowd --crowd 100 300 1000 --out docs/results/ray/crowd.json

The clients are processes of their own. Under kills every client sends texts and, for each answer, feedback; what the
server refuses with 5xx, or drops, is sent again. Then the store is read: every piece of feedback that was acknowledged
must be there, once, and be told to the router, once. All clients send the same texts, so that all answers of a merge
version must be alike: one that was made by two versions would not be. A slot ends every few seconds.

A crowd is simulated: replicas of which only the messages are there, all of them in one process, before the learner's
real actor. They report as real ones do, with texts that nobody asked, and merge nothing.

Kills come in stretches, each on a cluster and a state of its own. What a stretch found is added to the file at once,
and the same command goes on from there.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from ray import serve as ray_serve

from serving.models import with_tasks
from tanbr.fleet.fleet import Hello, Report, Welcome
from tanbr.fleet.ray import ClusterConfig, app, run
from tanbr.fleet.ray.learner import NAMESPACE, RayMachine, end_learner, found_learner, name_of
from tanbr.fleet.replica import REST, ReportBox
from tanbr.lab.tasks import tiny
from tanbr.serve.build import opened
from tanbr.serve.config import ServeConfig
from tanbr.serve.lineage import MadeFor, made_for
from tanbr.serve.panel import Answers
from tanbr.serve.store import FILE
from tanbr.serve.web.config import HttpConfig

PORT = 8672
PAUSE = 0.05  # seconds of a client between two requests under kills: what is killed should start again, too
ROUNDING = 1e-4  # of a label's probability in float32, whatever shares its batch
TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=5)]


@contextmanager
def served(config: ClusterConfig) -> Iterator[None]:
    """Serve on a Ray of its own."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: run(config, address=None, stop=stop, ready=lambda *_: ready.set()), daemon=True
    )
    thread.start()
    if not ready.wait(400):
        raise RuntimeError("the cluster did not start in 400 seconds")
    try:
        yield
    finally:
        stop.set()
        thread.join(120)


class Client:
    """One connection, opened again when it breaks."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self.refused: Counter[str] = Counter()

    def post(self, path: str, body: Any) -> Any:
        """Send until it is answered; how often it was not is counted."""
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
                self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    return json.loads(content)
                self.refused[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.refused[type(error).__name__] += 1
                self._connection = None
            time.sleep(0.05)


def give_feedback(ends: Any, out: Any, size: int) -> None:
    """Ask and give feedback until the end; tell ids that were acknowledged, and when each version answered what."""
    client, acknowledged, answers = Client(), [], []
    repeated = unknown = 0
    while not ends.is_set():
        asked = time.time()
        answer = client.post("/v1/classify", {"inputs": TEXTS[:size]})
        scores = tuple(max(output["scores"].values()) for output in answer["outputs"])
        answers.append((asked, scores, answer["merge_version"]))
        ids = [output["request_id"] for output in answer["outputs"]]
        given = [{"request_id": one, "reward": 0.5, "task": "sentiment"} for one in ids]
        receipt = client.post("/v1/feedback", {"feedback": given})
        acknowledged += [one for one, outcome in zip(ids, receipt["outcomes"], strict=True) if outcome != "unknown"]
        repeated, unknown = repeated + receipt["repeated"], unknown + receipt["unknown"]
        time.sleep(PAUSE)
    out.put((acknowledged, answers, repeated, unknown, dict(client.refused)))


def ask_only(ends: Any, out: Any, size: int) -> None:
    """Ask until the end, and say when each answer came; nothing after the first, and nothing at the end."""
    client = Client()
    client.post("/v1/classify", {"inputs": TEXTS[:size]})
    out.put(None)
    while not ends.is_set():
        client.post("/v1/classify", {"inputs": TEXTS[:size]})
        out.put(time.monotonic())  # one clock for all processes
    out.put(None)


def clients(work: Any, count: int, size: int) -> tuple[list[Any], Any, Any]:
    """Start clients."""
    context = multiprocessing.get_context("spawn")
    ends, out = context.Event(), context.Queue()
    processes = [context.Process(target=work, args=(ends, out, size)) for _ in range(count)]
    for process in processes:
        process.start()
    return processes, ends, out


def kills(given: argparse.Namespace) -> dict[str, Any]:
    """Kill replicas and learners under load, stretch by stretch until there were as many as asked for."""
    kept = json.loads(given.out.read_text()) if given.out is not None and given.out.exists() else {}
    stretches: list[dict[str, Any]] = kept.get("stretches", [])
    started = time.monotonic()
    while time.monotonic() - started < given.most_seconds:
        done = summed(stretches)
        left = given.replica_kills - done.get("replica_kills", 0), given.learner_kills - done.get("learner_kills", 0)
        if max(left) <= 0:
            break
        seconds = min(given.stretch_seconds, given.most_seconds - (time.monotonic() - started))
        stretches.append(stretch(*left, replicas=given.replicas, seconds=seconds))
        write(given.out, summed(stretches) | {"stretches": stretches})
    return summed(stretches) | {"stretches": stretches}


def summed(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up what the stretches found."""
    whole: dict[str, Any] = {}
    for found in stretches:
        for name, value in found.items():
            if isinstance(value, dict):
                whole[name] = dict(Counter(whole.get(name, {})) + Counter(value))
            elif name != "load":
                whole[name] = round(whole.get(name, 0) + value, 1)
    return whole


def stretch(replica_kills: int, learner_kills: int, *, replicas: int, seconds: float) -> dict[str, Any]:
    """Kill at most so many replicas and learners, for so many seconds at most."""
    state = Path(tempfile.mkdtemp()) / "state"
    serve = ServeConfig(slot_seconds=5.0, explore="always", merge_share=1.0)
    config = ClusterConfig(state=state, replicas=replicas, http=HttpConfig(port=PORT), serve=serve)
    killed: Counter[str] = Counter()
    every = replica_kills / max(1, learner_kills)
    with served(config):
        processes, ends, out = clients(give_feedback, 2, 4)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if killed["replica"] >= replica_kills and killed["learner"] >= learner_kills:
                break
            learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
            try:
                named = [name for name, _, answers in ray.get(learner.members.remote(), timeout=60) if answers]
                there = [name for name in named if RayMachine().alive(name)]  # the learner may not know it yet
            except ray.exceptions.RayError:
                there = []
            if len(there) < 2:  # one at least goes on answering
                time.sleep(0.2)
                continue
            if killed["replica"] < replica_kills:
                RayMachine().end(there[0])
                killed["replica"] += 1
            if killed["learner"] < learner_kills and killed["replica"] >= every * (1 + killed["learner"]) - 0.5:
                ray.kill(learner, no_restart=False)
                killed["learner"] += 1
            time.sleep(1.0)
        took = time.monotonic() - started
        time.sleep(10.0)
        ends.set()
        told = [out.get(timeout=180) for _ in processes]
        for process in processes:
            process.join()
        time.sleep(12.0)  # two slots: what was given is told
    return {
        "replica_kills": killed["replica"],
        "learner_kills": killed["learner"],
        "seconds": round(took, 1),
        **reckoned(state, told),
        "load": os.getloadavg()[0],
    }


def reckoned(state: Path, told: list[Any]) -> dict[str, Any]:
    """Compare what clients were told with what the store holds."""
    acknowledged = [one for part in told for one in part[0]]
    answers = [one for part in told for one in part[1]]
    with sqlite3.connect(state / FILE) as store:
        rows = store.execute("SELECT COUNT(*) FROM feedback").fetchone()
        told_slots = store.execute(
            "SELECT COALESCE(SUM(json_each.value), 0) FROM slots, json_each(slots.counts)"
        ).fetchone()
        last = store.execute(
            "SELECT COUNT(*) FROM feedback f JOIN slots s ON s.slot = f.slot WHERE NOT s.told"
        ).fetchone()
        slots = store.execute(
            "SELECT slot, version, started FROM slots JOIN models USING (slot) WHERE place = 0 ORDER BY slot"
        ).fetchall()
        there = {bytes(one).hex() for (one,) in store.execute("SELECT id FROM feedback")}
    return {
        "slots": len(slots),
        "answers": len(answers),
        "acknowledged": len(acknowledged),
        "acknowledged_twice_or_unknown": len(acknowledged) - len(set(acknowledged)) + sum(part[3] for part in told),
        "sent_again_and_found_there": sum(part[2] for part in told),
        "in_the_store": rows[0],
        "ids_in_the_store": len(there),
        "told_to_the_router": told_slots[0],
        "in_slots_not_yet_told": last[0],
        "answers_older_than_the_last_commit_and_one": too_old(slots, answers),
        "answers_unlike_others_of_their_version": unlike(answers),
        "refused_and_sent_again": dict(sum((Counter(part[4]) for part in told), Counter())),
    }


def unlike(answers: list[tuple[float, tuple[float, ...], int]]) -> int:
    """Count answers to the same texts that differ from what most answers of their merge version say."""
    of: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for _, scores, version in answers:
        of[version].append(scores)
    tables = [np.array(scores) for scores in of.values()]  # (answers, texts) each
    return int(sum((np.abs(table - np.median(table, axis=0)).max(axis=1) > ROUNDING).sum() for table in tables))


def restart(given: argparse.Namespace) -> dict[str, Any]:
    """Replace every replica by a new one, as a new setting does, while clients ask and give feedback."""
    state = Path(tempfile.mkdtemp()) / "state"
    serve = ServeConfig(slot_seconds=5.0, explore="always", merge_share=1.0)
    config = ClusterConfig(state=state, replicas=2, http=HttpConfig(port=PORT), serve=serve)
    seconds = []
    with served(config):
        processes, ends, out = clients(give_feedback, 2, 4)
        time.sleep(5.0)
        for number in range(given.rounds):
            before = members(config)
            started = time.monotonic()
            other = config.http.model_copy(update={"stop_seconds": config.http.stop_seconds + 1 + number})
            ray_serve.run(app(config.model_copy(update={"http": other})), name=config.name)
            while members(config) & before or len(members(config)) < 2:
                time.sleep(0.2)
            seconds.append(round(time.monotonic() - started, 1))
        time.sleep(5.0)
        ends.set()
        told = [out.get(timeout=180) for _ in processes]
        for process in processes:
            process.join()
        time.sleep(12.0)
    return {"restarts": given.rounds, "seconds_each": seconds, **reckoned(state, told)}


def members(config: ClusterConfig) -> set[str]:
    """Name the replicas that answer."""
    learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
    return {name for name, _, answers in ray.get(learner.members.remote(), timeout=60) if answers}


def too_old(slots: list[tuple[int, int, float]], answers: list[tuple[float, tuple[float, ...], int]]) -> int:
    """Count answers asked for when a slot that is two later than any with their version was open already."""
    count = 0
    for asked, _, version in answers:
        opened = [slot for slot, _, started in slots if started < asked]
        of_version = [slot for slot, number, _ in slots if number == version]
        newest = max(opened, default=0)
        count += not any(slot >= newest - 1 for slot in of_version)
    return count


def throughput(given: argparse.Namespace) -> dict[str, Any]:
    """Texts a second with one replica of one core and with two, of a model of MiniLM's size with random weights."""
    found: dict[int, list[float]] = {1: [], 2: []}
    work = Path(tempfile.mkdtemp())
    model = with_tasks("quick" if given.quick else "minilm", work)
    for replicas in found:
        config = ClusterConfig(
            checkpoint=str(model),
            force=True,  # random experts have no common ancestor
            state=work / f"state-{replicas}",
            replicas=replicas,
            http=HttpConfig(port=PORT),
            serve=ServeConfig(slot_seconds=3600.0, explore="never"),
        )
        with served(config):
            processes, ends, out = clients(ask_only, 4, 32)
            times = [one for _ in processes for one in iter(out.get, None)]  # until all of them ask
            started = time.monotonic()
            time.sleep(given.rounds * given.seconds)
            ends.set()
            times += [one for _ in processes for one in iter(out.get, None)]
            for process in processes:
                process.join()
        rounds, _ = np.histogram(times, bins=given.rounds, range=(started, started + given.rounds * given.seconds))
        found[replicas] = list(32 * rounds / given.seconds)
    best = {str(replicas): [round(rate, 1) for rate in rates] for replicas, rates in found.items()}
    ratio = sorted(found[2])[len(found[2]) // 2] / sorted(found[1])[len(found[1]) // 2]
    return {"model": model.name, "texts_a_second": best, "two_over_one": round(ratio, 2)}


class Simulated:
    """A replica of which only the messages are there: so many texts a second are answered, and nothing is merged."""

    def __init__(self, name: str, learner: Any, mine: MadeFor, *, texts: int) -> None:
        self._name, self._learner, self._mine, self._texts = name, learner, mine, texts
        self._box, self._answered = ReportBox(), 0
        self.reports, self.greetings, self.late = 0, 0, list[float]()

    async def run(self, ends: asyncio.Event) -> None:
        """Report until the end, as `tanbr.fleet.replica.Link` does."""
        at = prepared = None
        answering, started = False, time.monotonic()
        while not ends.is_set():
            if at is None:
                welcome: Welcome = await self._learner.call.remote("hello", Hello(self._name, self._mine))
                at, versions, ids = welcome.order.slot, welcome.order.versions, welcome.ids
                self.greetings += 1
            self._answer(at, versions[0], ids, int(self._texts * (time.monotonic() - started)))
            number, messages = self._box.untaken()
            report = Report(self._name, at, answering, prepared=prepared, number=number, messages=messages)
            asked = time.monotonic()
            reply = await self._learner.call.remote("ask", report)
            self.late.append(time.monotonic() - asked)
            self.reports += 1
            if not reply.known:
                at = None
                continue
            self._box.taken(reply.taken)
            answering = answering if reply.answer is None else reply.answer
            if reply.order is not None:
                at, versions, prepared = reply.order.slot, reply.order.versions, None
            elif reply.proposal is not None:
                prepared = reply.proposal.number
            await asyncio.sleep(REST)

    def _answer(self, slot: int, version: int, ids: Any, count: int) -> None:
        """Have answered so many texts by now."""
        new, self._answered = min(count - self._answered, len(TEXTS)), count
        if new:
            told = tuple(ids.issue(slot, new))
            self._box.put(Answers(version, slot, told, tuple(TEXTS[:new]), np.zeros((new, 15))))


class Everyone:
    """What runs replicas, and says that all of them live: Ray knows of none that are simulated."""

    def alive(self, member: str) -> bool:  # noqa: ARG002
        """It does."""
        return True

    def end(self, member: str) -> None:
        """Nobody is ended."""


def nobody_dies(actor: Any) -> int:
    """Have a learner believe so, where it runs; the number of its process."""
    actor._host.fleet._machine = Everyone()
    return os.getpid()


async def crowded(config: ClusterConfig, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Have so many report to the learner, and turn slots meanwhile: what the learner's process takes for it."""
    learner, ends = found_learner(config), asyncio.Event()
    mine = made_for(opened(config.checkpoint, method=None), ())
    process = psutil.Process(await learner.__ray_call__.remote(nobody_dies))
    all_of_them = [Simulated(f"simulated-{n}", learner, mine, texts=given.texts) for n in range(count)]
    running = [asyncio.create_task(one.run(ends)) for one in all_of_them]

    def spent(of: psutil.Process = process) -> float:
        return sum(of.cpu_times()[:2])

    while not all(one.reports > 2 for one in all_of_them):
        await asyncio.sleep(0.2)
    us = psutil.Process()
    before, worked, ours, started = sum(one.reports for one in all_of_them), spent(), spent(us), time.monotonic()
    for one in all_of_them:
        one.late.clear()
    await asyncio.sleep(given.seconds)
    took = time.monotonic() - started
    steady = {
        "reports_a_second": (sum(one.reports for one in all_of_them) - before) / took,
        "learner_cores": (spent() - worked) / took,
        "crowd_cores": (spent(us) - ours) / took,
        "seconds_to_an_answer": float(np.median([late for one in all_of_them for late in one.late])),
    }
    turns, work = [], []
    for _ in range(given.rounds):
        worked, started = spent(), time.monotonic()
        await learner.call.remote("end_slot")
        turns.append(time.monotonic() - started)
        work.append(spent() - worked)
        await asyncio.sleep(1.0)
    members = await learner.members.remote()
    ends.set()
    await asyncio.gather(*running)
    return {
        "replicas": count, "texts_a_second_each": given.texts, **steady,
        "turn_seconds": turns, "turn_cores_seconds": work,
        "followed": sum(answers and at == max(at for _, at, _ in members) for _, at, answers in members),
        "greeted_again": sum(one.greetings for one in all_of_them) - count,
    }  # fmt: skip


def crowd(given: argparse.Namespace) -> dict[str, Any]:
    """Simulate more and more replicas, each crowd before a learner of its own."""
    serve = ServeConfig(slot_seconds=3600.0, explore="always", merge_share=1.0)
    ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False)
    found = []
    for count in [10] if given.quick else given.crowd:
        config = ClusterConfig(state=Path(tempfile.mkdtemp()) / "state", serve=serve, name=f"crowd-{count}")
        found.append(asyncio.run(crowded(config, count, given)))
        print(found[-1], flush=True)
        end_learner(config, seconds=60.0)
    ray.shutdown()
    return {"crowds": found}


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write figures down."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = "python benchmarks/replicas.py " + " ".join(sys.argv[1:])
        path.write_text(json.dumps({"command": command, "cores": os.cpu_count()} | found, indent=1) + "\n")


def main() -> None:
    """Print the figures, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kills", "restart", "throughput", "crowd"], nargs="?", default="kills")
    parser.add_argument("--quick", action="store_true", help="two kills, one restart, or one short round")
    parser.add_argument("--replicas", type=int, default=3, help="under kills")
    parser.add_argument("--crowd", type=int, nargs="+", default=[100, 300, 1000], help="replicas that are simulated")
    parser.add_argument("--texts", type=int, default=8, help="a second that each of the simulated answers")
    parser.add_argument("--replica-kills", type=int, default=100)
    parser.add_argument("--learner-kills", type=int, default=20)
    parser.add_argument("--most-seconds", type=float, default=3600.0)
    parser.add_argument("--stretch-seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.replica_kills = given.learner_kills = given.rounds = 1
        given.seconds = 2.0
    before = os.getloadavg()[0]
    found = {"kills": kills, "restart": restart, "throughput": throughput, "crowd": crowd}[given.what](given)
    found |= {"load": [round(before, 1), round(os.getloadavg()[0], 1)]}
    print(json.dumps(found, indent=1))
    write(given.out, found)


if __name__ == "__main__":
    main()
