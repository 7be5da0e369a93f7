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
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import sqlite3
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
from serving.rounds import report
from tanbr.fleet.fleet import Report, Welcome
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
from tanbr.types import FloatArray

PORT, CORES = 8672, os.cpu_count() or 1
START = 400.0  # seconds, at most, for Ray, the learner and the replicas to start
ANSWER = 240.0  # seconds that anything is waited for: a learner that was killed is back in 20 on a busy machine
PAUSE = 0.05  # seconds of a client between two requests under kills: what is killed should start again, too
ROUNDING = 1e-4  # of a label's probability in float32, whatever shares its batch
TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=5)]


def cluster(replicas: int, **changes: Any) -> ClusterConfig:
    """Make the settings of a cluster with a state of its own; a slot ends every five seconds."""
    state = Path(tempfile.mkdtemp()) / "state"
    usual: dict[str, Any] = {"serve": ServeConfig(slot_seconds=5.0, explore="always", merge_share=1.0), "check": False}
    return ClusterConfig(state=state, replicas=replicas, http=HttpConfig(port=PORT), **usual | changes)


@contextmanager
def served(config: ClusterConfig) -> Iterator[None]:
    """Serve on a Ray of its own, which has a core for each replica, whatever else runs on this machine."""
    ray.init(address="local", num_cpus=max(CORES, config.replicas * config.cpus), include_dashboard=False)
    stop, ready, failed = threading.Event(), threading.Event(), list[BaseException]()

    def serve() -> None:
        try:
            run(config, address=None, stop=stop, ready=lambda *_: ready.set())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        if not ready.wait(START) or failed:
            raise RuntimeError(f"the cluster did not start in {START:g} seconds: {failed}")
        yield
    finally:
        stop.set()
        thread.join(ANSWER)
    if thread.is_alive():  # the next one would find this one's Ray
        raise RuntimeError(f"the cluster did not stop in {ANSWER:g} seconds")


class Client:
    """One connection, opened again when it breaks."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self.refused: Counter[str] = Counter()

    def post(self, path: str, body: Any) -> Any:
        """Send until it is answered; how often it was not is counted. What was sent wrongly is not sent again."""
        ends = time.monotonic() + ANSWER / 2
        while time.monotonic() < ends:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
                self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    return json.loads(content)
                if answer.status < 500 and answer.status != 429:
                    raise RuntimeError(f"{path} was answered with {answer.status}: {content[:300]!r}")
                self.refused[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.refused[type(error).__name__] += 1
                self._connection = None
            time.sleep(0.05)
        raise RuntimeError(f"{path} was not answered for {ANSWER / 2:g} seconds: {dict(self.refused)}")


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
    """Ask until the end; say when the first answer came, and at the end when each of them came."""
    client, times = Client(), list[float]()
    while not ends.is_set():
        client.post("/v1/classify", {"inputs": TEXTS[:size]})
        times.append(time.monotonic())  # one clock for all processes
        if len(times) == 1:
            out.put(times)
    out.put(times)


class Clients:
    """Clients that do their work until the end, a process each."""

    def __init__(self, work: Any, count: int, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends, self._out = context.Event(), context.Queue()
        arguments = (self._ends, self._out, size)
        self._processes = [context.Process(target=work, args=arguments, daemon=True) for _ in range(count)]
        for process in self._processes:
            process.start()

    def each(self) -> list[Any]:
        """Wait for the next thing that each of them says."""
        return [self._out.get(timeout=ANSWER) for _ in self._processes]

    def end(self) -> list[Any]:
        """Have all of them end; what each of them found."""
        self._ends.set()
        found = self.each()
        for process in self._processes:
            process.join(ANSWER)
        return found


@contextmanager
def asked(config: ClusterConfig) -> Iterator[dict[str, Any]]:
    """Serve while two clients ask and give feedback; what they were told beside what the store holds, at the end."""
    found: dict[str, Any] = {}
    with served(config):
        running = Clients(give_feedback, 2, 4)
        yield found
        time.sleep(10.0)
        told = running.end()
        time.sleep(12.0)  # two slots: what was given is told
    found |= reckoned(config.state, told)


def kills(given: argparse.Namespace) -> dict[str, Any]:
    """Kill replicas and learners under load, until there were as many as asked for, or the time is over."""
    config, killed = cluster(given.replicas), Counter[str]()
    every = given.replica_kills / max(1, given.learner_kills)
    with asked(config) as found:
        started = time.monotonic()
        while time.monotonic() - started < given.most_seconds:
            if killed["replica"] >= given.replica_kills and killed["learner"] >= given.learner_kills:
                break
            learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
            try:
                there = [name for name in sorted(members(config)) if RayMachine().alive(name)]  # it may not know it yet
            except ray.exceptions.RayError:
                there = []
            if len(there) < 2:  # one at least goes on answering
                time.sleep(0.2)
                continue
            if killed["replica"] < given.replica_kills:
                RayMachine().end(there[0])
                killed["replica"] += 1
            if killed["learner"] < given.learner_kills and killed["replica"] >= every * (1 + killed["learner"]) - 0.5:
                ray.kill(learner, no_restart=False)
                killed["learner"] += 1
            time.sleep(1.0)
        took = time.monotonic() - started
    return {
        "replica_kills": killed["replica"], "learner_kills": killed["learner"], "seconds": round(took, 1), **found,
    }  # fmt: skip


def reckoned(state: Path, told: list[Any]) -> dict[str, Any]:
    """Compare what clients were told with what the store holds."""
    acknowledged = [one for part in told for one in part[0]]
    answers = [one for part in told for one in part[1]]
    with sqlite3.connect(state / FILE) as store:

        def one(query: str) -> Any:
            return store.execute(query).fetchone()[0]

        rows = one("SELECT COUNT(*) FROM feedback")
        counted = one("SELECT COALESCE(SUM(json_each.value), 0) FROM slots, json_each(slots.counts)")
        last = one("SELECT COUNT(*) FROM feedback f JOIN slots s ON s.slot = f.slot WHERE NOT s.told")
        ids = one("SELECT COUNT(DISTINCT id) FROM feedback")
        slots = store.execute(
            "SELECT slot, version, started FROM slots JOIN models USING (slot) WHERE place = 0 ORDER BY slot"
        ).fetchall()
    return {
        "slots": len(slots),
        "answers": len(answers),
        "acknowledged": len(acknowledged),
        "acknowledged_twice_or_unknown": len(acknowledged) - len(set(acknowledged)) + sum(part[3] for part in told),
        "sent_again_and_found_there": sum(part[2] for part in told),
        "in_the_store": rows,
        "ids_in_the_store": ids,
        "told_to_the_router": counted,
        "in_slots_not_yet_told": last,
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


def too_old(slots: list[tuple[int, int, float]], answers: list[tuple[float, tuple[float, ...], int]]) -> int:
    """Count answers asked for when a slot that is two later than any with their version was open already."""
    last = {version: slot for slot, version, _ in slots}  # of each version
    newest = [max((slot for slot, _, started in slots if started < asked), default=0) for asked, _, _ in answers]
    return sum(last.get(one[2], -2) < slot - 1 for one, slot in zip(answers, newest, strict=True))


def restart(given: argparse.Namespace) -> dict[str, Any]:
    """Replace every replica by a new one, as a new setting does, while clients ask and give feedback."""
    config, seconds = cluster(2), []
    with asked(config) as found:
        time.sleep(5.0)
        for number in range(given.rounds):
            before, started = members(config), time.monotonic()
            other = config.http.model_copy(update={"stop_seconds": config.http.stop_seconds + 1 + number})
            ray_serve.run(app(config.model_copy(update={"http": other})), name=config.name)
            while members(config) & before or len(members(config)) < 2:
                time.sleep(0.2)
            seconds.append(round(time.monotonic() - started, 1))
    return {"restarts": given.rounds, "seconds_each": seconds, **found}


def members(config: ClusterConfig) -> set[str]:
    """Name the replicas that answer."""
    learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
    return {name for name, _, answers in ray.get(learner.members.remote(), timeout=60) if answers}


def throughput(given: argparse.Namespace) -> dict[str, Any]:
    """Texts a second with one replica of one core and with two, of a model of MiniLM's size with random weights."""
    found: dict[int, list[float]] = {}
    model = with_tasks("quick" if given.quick else "minilm", Path(tempfile.mkdtemp()))
    quiet = ServeConfig(slot_seconds=3600.0, explore="never", practice=0.0)
    for replicas in (1, 2):
        # random experts have no common ancestor: forced
        with served(cluster(replicas, checkpoint=str(model), force=True, serve=quiet)):
            running = Clients(ask_only, 4, 32)
            running.each()  # until all of them ask
            started = time.monotonic()
            time.sleep(given.rounds * given.seconds)
            times = [one for client in running.end() for one in client]
        rounds, _ = np.histogram(times, bins=given.rounds, range=(started, started + given.rounds * given.seconds))
        found[replicas] = [round(float(rate), 1) for rate in 32 * rounds / given.seconds]
        print(replicas, found[replicas], flush=True)
    ratio = float(np.median(found[2]) / np.median(found[1]))
    return {"model": model.name, "texts_a_second": found, "two_over_one": round(ratio, 2)}


class Simulated:
    """A replica of which only the messages are there: so many texts a second are answered, and nothing is merged."""

    def __init__(self, name: str, learner: Any, mine: MadeFor, *, texts: int) -> None:
        self._name, self._learner, self._mine, self._texts = name, learner, mine, texts
        self._box, self._answered = ReportBox(), 0
        self.reports, self.greetings, self.late = 0, 0, list[float]()

    async def run(self, ends: asyncio.Event) -> None:
        """Report until the end, as `tanbr.fleet.replica.Link` does."""
        at, prepared, answering, started = None, 0, False, time.monotonic()
        while not ends.is_set():
            if at is None:
                welcome: Welcome = await self._learner.call.remote("hello", Report(self._name), self._mine)
                at, versions, ids = welcome.order.slot, welcome.order.versions, welcome.ids
                self.greetings += 1
            self._answer(at, versions[0], ids, int(self._texts * (time.monotonic() - started)))
            number, messages = self._box.untaken()
            report = Report(self._name, at, answering, (prepared, ""), number, messages)
            asked = time.monotonic()
            reply = await self._learner.call.remote("ask", report)
            self.late.append(time.monotonic() - asked)
            self.reports += 1
            if not reply.known:
                at = None
                continue
            self._box.taken(number)
            answering = answering if reply.answer is None else reply.answer
            if reply.order is not None:
                at, versions = reply.order.slot, reply.order.versions
            elif reply.proposal is not None:
                prepared = reply.proposal.number
            await asyncio.sleep(REST)

    def _answer(self, slot: int, version: int, ids: Any, count: int) -> None:
        """Have answered so many texts by now."""
        new, self._answered = min(count - self._answered, len(TEXTS)), count
        if new:
            told = tuple(ids.issue(slot, new))
            self._box.put(Answers(version, slot, told, tuple(TEXTS[:new]), np.zeros((new, 15))))


def nobody_dies(actor: Any) -> int:
    """Have a learner believe so, where it runs: Ray knows of none that are simulated. The number of its process."""
    actor._host.fleet._machine.alive = lambda member: True  # noqa: ARG005
    return os.getpid()


async def crowded(config: ClusterConfig, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Have so many report to the learner, and turn slots meanwhile: what the learner's process takes for it."""
    learner, ends = found_learner(config), asyncio.Event()
    mine = made_for(opened(config.checkpoint, method=None), ())
    process, us = psutil.Process(await learner.__ray_call__.remote(nobody_dies)), psutil.Process()
    all_of_them = [Simulated(f"simulated-{n}", learner, mine, texts=given.texts) for n in range(count)]
    running = [asyncio.create_task(one.run(ends)) for one in all_of_them]
    while not all(one.reports > 2 for one in all_of_them):
        await asyncio.sleep(0.2)
    for one in all_of_them:
        one.late.clear()

    def account() -> FloatArray:
        """Seconds of the clock, of the learner's processor and of ours, and reports."""
        spent = [sum(of.cpu_times()[:2]) for of in (process, us)]
        return np.array([time.monotonic(), *spent, sum(one.reports for one in all_of_them)])

    before = account()
    await asyncio.sleep(given.seconds)
    took, worked, ours, reports = account() - before
    late = float(np.median([late for one in all_of_them for late in one.late]))
    turns = []
    for _ in range(given.rounds):
        before = account()
        await learner.call.remote("end_slot")
        turns.append((account() - before)[:2].tolist())
        await asyncio.sleep(1.0)
    members = await learner.members.remote()
    ends.set()
    await asyncio.gather(*running)
    return {
        "replicas": count, "texts_a_second_each": given.texts, "reports_a_second": reports / took,
        "learner_cores": worked / took, "crowd_cores": ours / took, "seconds_to_an_answer": late,
        "turn_seconds": [one for one, _ in turns], "turn_cores_seconds": [one for _, one in turns],
        "followed": sum(answers and at == max(at for _, at, _ in members) for _, at, answers in members),
        "greeted_again": sum(one.greetings for one in all_of_them) - count,
    }  # fmt: skip


def crowd(given: argparse.Namespace) -> dict[str, Any]:
    """Simulate more and more replicas, each crowd before a learner of its own."""
    serve = ServeConfig(slot_seconds=3600.0, explore="always", merge_share=1.0)
    ray.init(address="local", num_cpus=CORES, include_dashboard=False)
    found = []
    for count in [10] if given.quick else given.crowd:
        config = cluster(2, serve=serve, name=f"crowd-{count}")
        found.append(asyncio.run(crowded(config, count, given)))
        print(found[-1], flush=True)
        end_learner(config, seconds=60.0)
    ray.shutdown()
    return {"crowds": found}


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.replica_kills = given.learner_kills = given.rounds = 1
        given.seconds = 2.0
    before = os.getloadavg()[0]
    found = {"kills": kills, "restart": restart, "throughput": throughput, "crowd": crowd}[given.what](given)
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    report({"cores": CORES, **found, "load": load}, given.out)


if __name__ == "__main__":
    main()
