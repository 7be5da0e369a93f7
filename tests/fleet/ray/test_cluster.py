"""Two replicas and a learner on a real Ray, the embedded model, and parts that are killed under load."""

import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serve.serving import TEXTS
from serve.serving import until as until_within
from tanbr.errors import StateError
from tanbr.fleet.fleet import Report
from tanbr.serve.config import ServeConfig
from tanbr.serve.lineage import MadeFor
from tanbr.serve.store import Store
from tanbr.serve.web.config import HttpConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "tanbr[ray]"')
    from tanbr.fleet.ray import ClusterConfig, app, ray_serve, run
    from tanbr.fleet.ray.learner import NAMESPACE, RayLearner, RayMachine, name_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]  # the warnings are Ray's own
ADMIN = "an-administration-token-of-tests"
with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]
until = partial(until_within, seconds=120.0)


class Client:
    """Asks over HTTP; what it is told to send again it sends again."""

    url = f"http://127.0.0.1:{PORT}"

    def once(self, path: str, body: Any = None, *, post: bool = True) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {ADMIN}"}
        try:
            answer = httpx2.request("POST" if post else "GET", self.url + path, json=body, headers=headers, timeout=120)
        except httpx2.TransportError as error:
            return 0, str(error)
        return answer.status_code, answer.json() if answer.is_success else answer.text

    def __call__(self, path: str, body: Any = None, *, post: bool = True) -> Any:
        ends = time.monotonic() + 120
        while True:
            status, answer = self.once(path, body, post=post)
            if status == 200:
                return answer
            assert status in (0, 429, 500, 502, 503), (status, answer)  # 500: Serve's own, for a replica that died
            assert time.monotonic() < ends, (status, answer)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ClusterConfig:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "admin").write_text(ADMIN)
    serve = ServeConfig(slot_seconds=3600.0, explore="always", merge_share=1.0)
    return ClusterConfig(
        state=folder / "state", replicas=2, http=HttpConfig(port=PORT), serve=serve, admin_token_file=folder / "admin"
    )


@pytest.fixture(scope="module")
def cluster(config: ClusterConfig) -> Iterator[Client]:
    """A cluster of its own, which is stopped at the end: all must be saved then."""
    stop, ready, saved = threading.Event(), threading.Event(), []

    def serving() -> None:
        try:
            saved.append(run(config, address="local", stop=stop, ready=lambda *_: ready.set()))
        finally:
            ready.set()

    thread = threading.Thread(target=serving)
    thread.start()
    assert ready.wait(300)
    yield Client()
    stop.set()
    thread.join(120)
    temporary = Path(tempfile.gettempdir())
    for left in (temporary / "ray", *temporary.glob("pymp-*")):  # Ray's log, and what its killed processes had
        shutil.rmtree(left, ignore_errors=True)
    assert saved == [True]


def members(config: ClusterConfig) -> list[tuple[str, int, bool]]:
    learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
    found: list[tuple[str, int, bool]] = ray.get(learner.members.remote(), timeout=60)
    return found


class Load:
    """Texts and feedback on each, all the time; it remembers what was acknowledged, and which versions answered."""

    def __init__(self, client: Client) -> None:
        self.client, self.acknowledged, self.repeated, self.versions = client, [], 0, set()  # type: ignore[var-annotated]
        self.stop, self.ended = threading.Event(), False
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        assert self.ended

    def _run(self) -> None:
        while not self.stop.is_set():
            self.round()
        self.ended = True

    def round(self) -> None:
        answer = self.client("/v1/classify", {"inputs": TEXTS[:4]})
        self.versions.add(answer["merge_version"])
        ids = [output["request_id"] for output in answer["outputs"]]
        given = [{"request_id": one, "reward": 0.5, "task": "sentiment"} for one in ids]
        receipt = self.client("/v1/feedback", {"feedback": given})
        assert receipt["unknown"] == 0, receipt
        self.acknowledged += ids
        self.repeated += receipt["repeated"]


def test_both_replicas_answer_and_take_over_a_new_blend(cluster: Client, config: ClusterConfig) -> None:
    assert len(members(config)) == 2
    blend = [0.0] * 8
    blend[3] = 1.0
    pinned = cluster("/v1/admin/pin", {"blend": blend})
    assert {at for _, at, _ in members(config)} == {pinned["slot"]}
    versions = {cluster("/v1/classify", {"inputs": TEXTS[:2]})["merge_version"] for _ in range(12)}
    assert versions == {pinned["merge_version"]}
    cluster("/v1/admin/unpin")
    assert cluster("/v1/state", post=False)["merge_version"] == pinned["merge_version"]


def test_kills_lose_nothing_that_was_acknowledged(cluster: Client, config: ClusterConfig) -> None:
    with Load(cluster) as load:
        until(lambda: len(load.acknowledged) >= 8)
        for _ in range(2):
            gone = members(config)[0][0]
            RayMachine().end(gone)
            before = cluster("/v1/admin/slot")["slot"]  # turns without the one that is dead
            until(lambda gone=gone: gone not in [name for name, _, _ in members(config)])  # type: ignore[misc]
            learner = ray.get_actor(name_of(config), namespace=NAMESPACE)
            had = len(load.acknowledged)
            ray.kill(learner, no_restart=False)
            until(lambda had=had: len(load.acknowledged) >= had + 8)  # type: ignore[misc]
            now = cluster("/v1/admin/slot")
            assert now["slot"] > before
            until(lambda: len(members(config)) == 2 and all(answers for _, _, answers in members(config)))
            until(lambda now=now: {at for _, at, _ in members(config)} == {now["slot"]})  # type: ignore[misc]
    cluster("/v1/admin/slot")
    cluster("/v1/admin/slot")
    copy = cluster("/v1/slots?limit=1000", post=False)["slots"]
    told = sum(sum(slot["counts"]) for slot in copy if slot["told"])
    assert abs(told - len(load.acknowledged)) < 0.5, (told, len(load.acknowledged))
    assert len(load.acknowledged) == len(set(load.acknowledged))
    assert len(load.versions) > 1


def test_a_rolling_restart_loses_no_request(cluster: Client, config: ClusterConfig) -> None:
    """New settings of the replicas: Ray Serve starts others, and ends the old ones when they have answered."""
    before = {name for name, _, _ in members(config)}
    refused: list[tuple[int, Any]] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            status, answer = cluster.once("/v1/classify", {"inputs": TEXTS[:2]})
            if status != 200:
                refused.append((status, answer))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        http = config.http.model_copy(update={"stop_seconds": config.http.stop_seconds + 1})
        changed = config.model_copy(update={"http": http})
        ray_serve.run(app(changed), name=config.name, route_prefix="/")
        until(lambda: len(members(config)) == 2 and before.isdisjoint(name for name, _, _ in members(config)))
    finally:
        stop.set()
        thread.join()
    assert refused == []


def test_another_checkpoint_and_a_second_learner_are_refused(cluster: Client, config: ClusterConfig) -> None:
    with pytest.raises(StateError, match="this replica has checkpoint other"):
        RayLearner(config)("hello", Report("stranger"), MadeFor((), ("a",) * 8, "average", "other"))
    with pytest.raises(StateError, match="in use by another server"):
        Store(config.state)
    second = config.model_copy(update={"name": "second"})
    try:
        with pytest.raises(StateError, match="in use by another server"):
            RayLearner(second)("end_slot")
    finally:
        ray.kill(ray.get_actor(name_of(second), namespace=NAMESPACE))
    assert cluster("/readyz", post=False) == {"status": "ok"}
