"""What serving costs, and what it withstands: a real server process and a real client process on loopback.

Every figure is a ratio inside one run, with its spread over rounds. Sections that are done are kept in `--out` and
skipped when the same command is run again; `--only throughput` runs one, `--within 250` as many of its rounds as that
many seconds allow, and throughput adds its rounds to those that are there. `--quick` uses a tiny model and few rounds.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of this process, the client

import torch
import transformers

from serving import backends, faults, memory, picture, practice, slots, speed, start
from serving.models import Given
from tanbr.files import write_atomically

Section = Callable[[dict[str, Any]], dict[str, Any]]  # what was measured before → what is known now


def sections(args: argparse.Namespace, given: Given) -> dict[str, Section]:
    """Name → what it measures."""
    quick, threads, work = args.quick, args.threads, given.work
    small, large = ("quick", "quick") if quick else ("minilm", "base")
    rounds = 2 if quick else args.rounds
    found: dict[str, Section] = {}
    for size in dict.fromkeys((small, large)):
        found[f"throughput {size}"] = lambda before, size=size: speed.throughput(  # type: ignore[misc]
            given, size, threads=threads, rounds=rounds, within=args.within, before=before, only=args.servers or ()
        )
    of_slots: list[tuple[str | None, int]] = [(None, 1), (None, 3), *(() if quick else ((small, 1), (large, 1)))]
    for served, G in of_slots:
        count = 5 if quick else {"minilm": 20, "base": 5}.get(served or "", 150)
        how: dict[str, Any] = {"models": G, "rounds": 1 if quick else args.rounds, "count": count}
        found[f"slots {served or 'embedded'}, {G} model{'s' * (G > 1)}"] = partial(slots.slots, served, work, **how)
    for size in dict.fromkeys((small, large)):
        found[f"backends {size}"] = lambda _, size=size: backends.backends(size, work, rounds=rounds)  # type: ignore[misc]
    found[f"panel {small}"] = lambda _: speed.panel(
        small, work, threads=threads, rounds=rounds, batches=4 if quick else 16
    )
    for size in dict.fromkeys(("quick", small, large)):
        found[f"swaps {size}"] = lambda _, size=size: speed.swaps(  # type: ignore[misc]
            size, work, threads=threads, rounds=rounds, count=20 if quick else args.swaps
        )
    taught = given.models.get(small)  # None is the embedded model, of generated tasks
    found["practice"] = lambda _: practice.practice(
        taught, given.glue if taught else None, work, rounds=rounds, count=20 if quick else 500
    )
    for served in dict.fromkeys((None, large)):
        found[f"start {served or 'embedded'}"] = partial(start.start, served, work, rounds=rounds)
    for size in dict.fromkeys((small, large)):
        found[f"memory {size}"] = partial(memory.memory, size, work, threads=threads, swaps=3 if quick else 10)
    found["soak"] = lambda _: memory.soak(work, threads=1, minutes=args.soak_minutes)
    found["kills"] = lambda _: faults.kills(work, count=4 if quick else args.kills)
    return found


def main() -> None:
    """Measure, write, show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model, under a minute")
    parser.add_argument("--only", action="append", help="sections to run, by how their names start")
    parser.add_argument("--again", action="store_true", help="measure sections anew that are in --out")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for the rounds of a throughput")
    parser.add_argument("--servers", action="append", help="rivals of a throughput to run, by how their names start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--soak-minutes", type=float, default=None, help="30, or a few seconds with --quick")
    parser.add_argument("--threads", type=int, default=2, help="of the served model")
    parser.add_argument("--glue", type=Path, default=None, help="GLUE's folder: its texts are sent to servers")
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--model", **several, metavar="SIZE=FOLDER", help="a BERT-MoE in place of random weights")
    parser.add_argument("--python", **several, metavar="RIVAL=PATH", help="that has infinity, vllm or litserve")
    parser.add_argument("--work", type=Path, default=None, help="folder for models and states; a temporary one if none")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end, too
    args.soak_minutes = args.soak_minutes or (0.1 if args.quick else 30.0)

    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    done |= {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), **processor()},
        "versions": {package.__name__: package.__version__ for package in (torch, transformers)},
    }
    command = f"python benchmarks/serve.py {' '.join(a.partition('=/')[0] for a in sys.argv[1:] if a[0] != '/')}"
    results = done.setdefault("sections", {})
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        models = {size: Path(folder).resolve() for size, folder in pairs(args.model).items()}
        given = Given(work.resolve(), args.glue, models, pairs(args.python))
        for name, measure in sections(args, given).items():
            if args.only and not any(name.startswith(wanted) for wanted in args.only):
                continue
            adds = name.startswith("throughput")
            if name in results and not args.again and not adds:
                print(f"{name}: done before")
                continue
            started = time.perf_counter()
            results[name] = measure({} if args.again else results.get(name, {}))
            results[name]["command"] = command
            print(f"{name} ({time.perf_counter() - started:.0f} s)")
            shown = {key: value for key, value in results[name].items() if key not in ("kept_rounds", "runs")}
            print(json.dumps(shown, indent=1))
            if args.out:
                write_atomically(args.out, json.dumps(done, indent=1) + "\n")
                picture.draw(results, args.out.with_suffix(".png"))


def processor() -> dict[str, Any]:
    """Name this machine's processor, and the instructions that speed depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    wide = [flag for flag in fields.get("flags", "").split() if flag.startswith(("avx", "amx", "fma"))]
    return {"model": fields.get("model name"), "flags": wide}


def pairs(options: list[str]) -> dict[str, str]:
    """Read NAME=VALUE options."""
    return {name: value for name, _, value in (option.partition("=") for option in options)}


if __name__ == "__main__":
    main()
