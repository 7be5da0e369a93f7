"""A panel before an engine: experts whose tasks are told apart by their words, and what is measured of it."""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from engines.front import spread
from engines.tiny_adapters import blended_by_peft
from tanbr.loop.slot import Choice, Reason
from tanbr.merge import Moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.service import Service
from tanbr.types import FloatArray

WORDS_EACH = 15  # that the prompts of one task are made of
TASKS = ("alpha", "beta", "gamma", "delta")


def prompt(task: int, number: int) -> str:
    """Make a prompt of a task: its own words, in an order of their own."""
    return " ".join(f"w{WORDS_EACH * task + (number * 7 + step * (1 + number % 5)) % WORDS_EACH}" for step in range(8))


def write_experts(moe: Moe, folder: Path) -> Path:
    """Write the list of experts, with their tasks, and the history that tells these apart beside it; the list."""
    listed = [
        f'[[experts]]\npath = "{path}"\ntask = "{task}"\n' for path, task in zip(moe.source.names, TASKS, strict=False)
    ]
    (folder / "experts.toml").write_text(f'base = "{moe.path}"\n' + "".join(listed), encoding="utf-8")
    lines = [
        {"text": prompt(task, n), "task": name} for task, name in enumerate(TASKS[: len(listed)]) for n in range(40)
    ]
    (folder / "past.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder / "experts.toml"


def sets(count: int, *, models: int, experts: int) -> list[FloatArray]:
    """Draw panels (G, K), all different: of each blend three experts, the first among them, as PEFT needs it."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        blends = rng.dirichlet(np.ones(experts), size=models)
        blends[np.arange(models), 1 + blends[:, 1:].argmin(axis=1)] = 0.0
        found.append(np.round(blends / blends.sum(axis=1, keepdims=True), 6))
    return [one / one.sum(axis=1, keepdims=True) for one in found]


def serve(service: Service, blends: FloatArray) -> None:
    """Have a panel (G, K) chosen, as an operator's pin is: in the learner's thread, written down, then switched to."""
    tasks = len(service.info.tasks)
    estimates = np.array(
        [[1.0 + ((task + place) % len(blends) == 0) for task in range(tasks)] for place in range(len(blends))]
    )
    assert service.call(lambda learning: learning.turn(Choice.panel(blends, estimates, Reason.PINNED)))


def switched(
    service: Service, url: str, panels: Sequence[FloatArray], *, clients: int, least: int, limit: int
) -> tuple[list[dict[str, Any]], dict[int, FloatArray], list[float]]:
    """Switch sets while clients ask, `least` requests or more: answers, the blend of each version, seconds a switch."""
    done, answers, lock = threading.Event(), [], threading.Lock()
    blends, seconds = {}, []

    def ask(client: int) -> None:
        number = 0
        with httpx2.Client(base_url=url, timeout=120) as http:
            while not done.is_set() or len(answers) < least:
                text = prompt((client + number) % len(TASKS), number % 6)
                body = {
                    "model": "tanbr",
                    "prompt": text,
                    "max_tokens": limit,
                    "temperature": 0,
                    "return_token_ids": True,
                }
                said = http.post("/v1/completions", json=body)
                with lock:
                    answers.append({"status": said.status_code, "prompt": text, **said.json()})
                number += 1

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, client) for client in range(clients)]
        try:
            for number, panel in enumerate(panels, start=1):
                while len(answers) < least * number // (len(panels) + 1):
                    done.wait(0.01)
                started = time.perf_counter()
                serve(service, panel)
                seconds.append(time.perf_counter() - started)
                blends |= {one.version: np.asarray(one.blend) for one in service.engine.panel.models}
        finally:
            done.set()
        for one in asking:
            one.result()
    return answers, blends, seconds


def wrong(moe: Moe, answers: Sequence[dict[str, Any]], blends: dict[int, FloatArray], *, limit: int) -> list[str]:
    """What differs from transformers with PEFT's own blend of the version that an answer names."""
    encode, known, found = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"]), {}, []
    for version in sorted({one["merge_version"] for one in answers}):
        model = blended_by_peft(moe, blends[version].tolist())
        for one in (one for one in answers if one["merge_version"] == version):
            if (version, one["prompt"]) not in known:
                known[version, one["prompt"]] = _tokens(model, encode, one["prompt"], limit)
            if one["choices"][0]["token_ids"] != known[version, one["prompt"]]:
                found.append(f"version {version}, {one['prompt']}: {one['choices'][0]['token_ids']}")
    return found


def _tokens(model: Any, encode: TextEncoder, text: str, limit: int) -> list[int]:
    inputs = encode([text])
    new = model.generate(
        **{name: inputs[name] for name in ("input_ids", "attention_mask")}, max_new_tokens=limit, do_sample=False
    )
    return [int(token) for token in new[0, inputs["input_ids"].shape[1] :]]


def compared(
    ways: dict[str, Callable[[str], None]], *, clients: int, requests: int, rounds: int
) -> dict[str, list[float]]:
    """Ask in turn, round by round: way → seconds that a round of requests took, over the requests."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(clients) as pool:
        for number in range(rounds + 1):  # the first is not counted
            for name, ask in ways.items():
                texts = [prompt(n % len(TASKS), n // len(TASKS)) for n in range(requests)]
                started = time.perf_counter()
                list(pool.map(ask, texts))
                if number:
                    took[name].append((time.perf_counter() - started) / requests)
    return took


def over_direct(took: dict[str, list[float]]) -> dict[str, Any]:
    """How much longer tanbr takes than the engine asked directly, round by round within one run."""
    direct, ours = np.array(took["direct"]), np.array(took["tanbr"])
    return {
        "milliseconds a request, directly": spread((1e3 * direct).tolist()),
        "milliseconds a request, through tanbr": spread((1e3 * ours).tolist()),
        "added milliseconds": spread((1e3 * (ours - direct)).tolist()),
        "throughput through tanbr over direct": spread((direct / ours).tolist()),
    }


def cpu_seconds(group: int) -> float:
    """Seconds of the processor that a process has taken, with all others of its group."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            total += int(words[11]) + int(words[12]) if group in (int(words[2]), int(stat.parent.name)) else 0
    return total / os.sysconf("SC_CLK_TCK")


def beside() -> str:
    """Say what ran beside a measurement."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
