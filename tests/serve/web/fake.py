"""A service without a model: what the web needs of a `Service`, answered from memory."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.serve.records import (  # fmt: skip
    Alarm,
    Answered,
    ClientView,
    Feedback,
    Generated,
    ModelView,
    OnToken,
    Outcome,
    Phase,
    Reason,
    Receipt,
    ServiceInfo,
    ServiceState,
    SlotView,
    Stopping,
    VersionView,
    Why,
)  # fmt: skip
from tanbr.serve.sampling import WritingOptions
from tanbr.types import Text, as_blend

TASKS = ("mood", "topic", "likeness")
EXPERTS = ("mood", "topic", "likeness", "expert 4")
COLUMNS = ("bad", "good", "sport", "likeness")
K, V = 4, len(TASKS)
LONGEST = 12  # words of a text or a prompt that this model reads


class FakeService:
    def __init__(self, kind: Literal["classifier", "text"] = "classifier", *, slots: int = 30) -> None:
        self.info = ServiceInfo(
            model="fake", family="fake_moe", kind=kind, experts=K, expert_names=EXPERTS, sites=2,
            tasks=TASKS,
            columns=COLUMNS if kind == "classifier" else (), classes=3 if kind == "classifier" else 0,
            scales={"likeness": (0.0, 5.0)} if kind == "classifier" else {}, loaded_parameters=10, loaded_bytes=40,
            spare_bytes=8, full_parameters=30, full_bytes=120, precision="fp32", agreement=None, device="cpu",
            max_tokens=16, slot_requests=64, slot_seconds=None,
        )  # fmt: skip
        self.ready, self.client_secret = False, b"secret"
        self.failing: Exception | None = None  # raised by the next calls
        self.stuck = False  # futures that never come
        self.broken: tuple[str, ...] = ()  # what `faults` says
        self.disk = threading.Event()  # feedback waits for it
        self.disk.set()
        self.futures: list[Future[Any]] = []  # of every submit and generate
        self.given_by: list[str] = []  # of every feedback
        self.stopped_within: float | None = None
        self.pinned = False
        self.models = 1  # that answer side by side
        self.version = 3
        self.given: dict[str, Feedback | None] = {}
        self.calls: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._slots = self._made_up(slots)

    def _made_up(self, slots: int) -> list[SlotView]:
        rng, now = np.random.default_rng(0), time.time()
        made = []
        for slot in range(slots):
            mix = np.array([1.2 + np.sin(slot / 6 + 2 * v) for v in range(V)])
            mix, blend = mix / mix.sum(), rng.dirichlet(np.full(K, 0.5))
            reward = np.clip(0.5 + 0.3 * blend[:V] + rng.normal(0, 0.03, V), 0, 1)
            reward[rng.integers(V)] = np.nan if slot % 5 == 0 else 0.7
            counts = np.where(np.isnan(reward), 0.0, 20.0)
            reason, note = (Reason.ROLLED_BACK, "rolled back") if slot == 7 else (Reason.CHOSEN, "")
            start = now - 60.0 * (slots - slot)
            told = slot, slot // 2, mix, blend, reward, counts
            made.append(SlotView(*told, start, start + 60, 64, True, 0.01, mix, 0.02, reason, note))
        return made

    def start(self) -> None:
        self.ready = True

    def stop(self, timeout: float = 30.0) -> bool:
        self.ready, self.stopped_within = False, timeout
        return True

    def faults(self) -> tuple[str, ...]:
        return self.broken

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing
        if not self.ready:
            raise Stopping("the service has not started")

    def _ids(self, count: int) -> tuple[str, ...]:
        with self._lock:
            names = tuple(f"r{len(self.given) + i}" for i in range(count))
            self.given.update(dict.fromkeys(names))
        return names

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]":
        self._check()
        self.calls.append(("submit", list(texts)))
        future: Future[Answered] = Future()
        self.futures.append(future)
        if not self.stuck:
            logits = np.array([[len("".join(text)) % 7, 1.0, 0.5, 0.0] for text in texts])
            cut = tuple(max(0, len("".join(text).split()) - LONGEST) for text in texts)
            versions = tuple(self.version - i % self.models for i in range(len(texts))) if self.models > 1 else ()
            future.set_result(Answered(self._ids(len(texts)), logits, self.version, cut, versions))
        return future

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> "Future[str]":
        future: Future[str] = Future()
        self.calls.append(("chat", list(messages)))
        if messages[0]["content"] == "refuse":
            future.set_exception(InputError("the model's chat template refuses these messages"))
        else:
            future.set_result(" ".join(message["content"] for message in messages if message["content"]))
        return future

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        options: WritingOptions = WritingOptions(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]":
        self._check()
        if (max_tokens or 1) > self.info.max_tokens:
            raise InputError(
                f"max_tokens must be 1..16 (got {max_tokens}); the server's [serve] max_tokens allows more"
            )
        self.calls.append(("generate", list(prompts), max_tokens))
        future: Future[Generated] = Future()
        self.futures.append(future)
        prompts = [prompt for prompt in prompts for _ in range(options.n)]
        self.options = options
        written = [prompt.upper().split()[: max_tokens or 16] for prompt in prompts]
        texts = tuple(" ".join(words) for words in written)

        def write() -> None:
            if any(len(prompt.split()) > LONGEST for prompt in prompts):
                future.set_exception(InputError(f"a prompt must have at most {LONGEST} tokens"))
                return
            for i, words in enumerate(written):
                for j, word in enumerate(words):
                    if on_token is not None:
                        on_token(i, word if j == 0 else f" {word}")
            if prompts[0] == "go on and on":
                return
            if prompts[0] == "break":
                future.set_exception(RuntimeError("secret"))
                return
            tokens = tuple(len(words) for words in written)
            length = tuple("length" if n == max_tokens else "stop" for n in tokens)
            future.set_result(
                Generated(self._ids(len(prompts)), texts, tokens, tokens, length, self.version)  # type: ignore[arg-type]
            )

        if not self.stuck:
            threading.Thread(target=write).start()
        return future

    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt:
        self._check()
        self.given_by.append(client)
        self.disk.wait()
        outcomes: list[Outcome] = []
        with self._lock:
            for item in items:
                if item.request_id not in self.given:
                    outcomes.append("unknown")
                elif self.given[item.request_id] is not None:
                    outcomes.append("repeated")
                else:
                    self.given[item.request_id] = item
                    outcomes.append("accepted")
        return Receipt.of(outcomes)

    def state(self) -> ServiceState:
        last = self._slots[-1]
        return ServiceState(
            slot=len(self._slots), merge_version=self.version, task_mix=last.task_mix, blend=last.blend,
            reward=last.reward, counts=last.counts, estimated_regret=0.02, requests=5, answered=len(self.given),
            queue=0, phase=Phase.PINNED if self.pinned else Phase.LEARNING,
            why=Why("it promises most for the mix at hand", 0.71, 0.04, 0.78), pinned=self.pinned,
            shares={"feedback": 1.0},
            alarms=(Alarm(time.time() - 90, 7, "the mix <drifts>: 12% of requests are unlike any task"),),
            last_merge_seconds=0.02, last_pause_seconds=float("nan"), uptime=3.0,
            models=tuple(
                ModelView(self.version - g, np.roll(last.blend, g), TASKS[g :: self.models], 1 / self.models, 5, 0.7)
                for g in range(self.models)
            ),
        )  # fmt: skip

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        last = len(self._slots) if before is None else min(before, len(self._slots))
        return self._slots[:last][::-1][:limit]

    def versions(self) -> list[VersionView]:
        return [
            VersionView(n, self._slots[2 * n].blend, time.time() - 60 * n, n != 1, n > 1, 64, 0.7 + n / 50)
            for n in range(self.version, -1, -1)
        ]

    def clients(self) -> list[ClientView]:
        return [ClientView("shop", 0.1, False), ClientView("desk", 1.0, True)]

    def pin(self, target: ArrayLike | int) -> int:
        self._check()
        self.calls.append(("pin", target))
        if isinstance(target, int):
            self._known(target)
        else:
            as_blend(target, experts=K)
        self.pinned = True
        return self.version

    def unpin(self) -> None:
        self.pinned = False

    def rollback(self, version: int | None = None) -> int:
        self.calls.append(("rollback", version))
        self.version = self.version - 1 if version is None else self._known(version)
        return self.version

    def _known(self, version: int) -> int:
        if version > self.version:
            raise InputError(f"there is no merge version {version} to serve; the last is {self.version}")
        return version

    def end_slot(self) -> int:
        self.calls.append(("end_slot",))
        return len(self._slots)
