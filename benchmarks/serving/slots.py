"""Slots beside a saturated server: whether they keep their length, what a turn takes, and what it costs in speed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from serving import processes
from serving.client import ask
from serving.models import with_tasks
from serving.rounds import ratios, spread

WANTED = 64  # requests of a slot
PARTS = re.compile(r'tanbr_turn_(seconds_sum|seconds_count|cpu_seconds_total)\{part="(\w+)"\} (\S+)')


def slots(size: str | None, work: Path, _before: object, *, models: int, rounds: int, count: int) -> dict[str, Any]:
    """Send `tanbr traffic` at full speed, for so many slots; beside it, in turn, a server that never turns one."""
    folder = None if size is None else with_tasks(size, work)
    turning, still, runs = [], [], []
    for _ in range(rounds):
        with processes.tanbr(folder, work, models=models, slot_seconds=None, slot_requests=WANTED) as (port, _):
            sent = _traffic(port, work, count)
            turns = ask(port, "GET", "/v1/state")[1]["slot"]
            metrics = ask(port, "GET", "/metrics", token=processes.TOKEN)[1].decode()
        turning.append(sent["texts_per_second"])
        runs.append({"turns": turns, "reward": sent["reward"], "tail_reward": sent["tail_reward"], **_parts(metrics)})
        with processes.tanbr(folder, work, models=models) as (port, _):
            still.append(_traffic(port, work, count)["texts_per_second"])
    return {
        "size": size or "embedded",
        "models": models,
        "requests": WANTED * count,
        "wanted_turns": count,
        "turns": spread([run["turns"] for run in runs]),
        "turn_cpu_ms": spread([run["cpu_ms"]["all"] for run in runs]),
        "turn_cpu_ms_without_merge": spread([run["cpu_ms"]["all"] - run["cpu_ms"].get("merge", 0.0) for run in runs]),
        "texts_per_second": spread(turning),
        "texts_per_second_without_turns": spread(still),
        "speed_left": ratios(turning, still),
        "runs": runs,
    }


def _traffic(port: int, work: Path, count: int) -> dict[str, Any]:
    out = work / "traffic.json"
    command = [str(Path(sys.executable).with_name("tanbr")), "traffic", "--slots", str(count), "--out", str(out)]
    subprocess.run([*command, "--server", f"http://127.0.0.1:{port}"], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _parts(metrics: str) -> dict[str, dict[str, float]]:
    """Milliseconds of a turn by part: by the clock, and of the processor."""
    values = {(kind, part): float(value) for kind, part, value in PARTS.findall(metrics)}
    turns = max(value for (kind, _), value in values.items() if kind == "seconds_count")
    found: dict[str, dict[str, float]] = {}
    for name, kind in (("clock_ms", "seconds_sum"), ("cpu_ms", "cpu_seconds_total")):
        parts = {part: 1e3 * value / turns for (of, part), value in values.items() if of == kind}
        found[name] = parts | {"all": sum(parts.values())}
    return found
