"""The suite under other conditions: CPUs, threads, load, order, signals, examples, Python versions. `make test-matrix`.

A CPU cannot be imitated in full, but part of the spread can: what is green here under all of these has little left
that depends on the machine. Prints a line for each variant, and exits with 1 if any of them failed. An example that
Hypothesis found is printed as the decorator to put above its test.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
NO_AVX512 = {
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
OLD_CPU = {
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
}


@dataclass(frozen=True)
class Variant:
    """One run of the suite."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    under: tuple[str, ...] = ()  # the command that runs it
    busy: int = 0  # endless loops beside it
    python: str = sys.executable


VARIANTS = (
    Variant("as it is"),
    Variant("one thread", {"OMP_NUM_THREADS": "1"}, ("--shuffle", "1")),
    Variant("two threads", {"OMP_NUM_THREADS": "2"}, ("--shuffle", "2")),
    Variant("no AVX-512", NO_AVX512),
    Variant("an old CPU", OLD_CPU),
    Variant("beside two busy loops", options=("--shuffle", "3"), busy=2),
    Variant("SIGINT ignored", under=("sh", "-c", 'trap "" INT; exec "$@"', "sh")),
    Variant("without a terminal", under=("setsid", "--wait", "nohup")),
    Variant("other examples", options=("--hypothesis-profile", "explore")),
)


def other_pythons() -> list[Variant]:
    """Find interpreters beside this one that have what the suite needs: environments named `.venv-3.12` and so on."""
    found = sorted(ROOT.glob(".venv-3.*/bin/python"))
    return [Variant(f"Python {path.parts[-3].removeprefix('.venv-')}", python=str(path)) for path in found]


def examples(output: str) -> list[str]:
    """Find what Hypothesis reported, each as the line to keep above its test."""
    pattern = r"^E +(?:Failing test case|Falsifying example): (\w+)\(\n((?:E .*\n)*?)E +\)$"
    lines = []
    for name, block in re.findall(pattern, output, re.M):
        words = [re.sub(r"^E +| *# (or any other|The test) .*$", "", line) for line in block.splitlines()]
        lines.append(f"@example({' '.join(filter(None, words)).removesuffix(',')})  # {name}")
    return lines


def run(variant: Variant, arguments: list[str]) -> bool:
    """Run the suite once; whether it passed."""
    started = time.monotonic()
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(variant.busy)]
    try:
        command = [*variant.under, variant.python, "-m", "pytest", "-q", "-n", "2", *variant.options, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | variant.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    finally:
        for loop in loops:
            loop.kill()
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    width = shutil.get_terminal_size().columns
    for line in [line for line in lines if line.startswith(("FAILED", "ERROR"))]:
        print("   ", line[: max(60, width - 4)])
    for example in examples(done.stdout):
        print("   ", example)
    verdict, seconds = "ok" if done.returncode == 0 else "FAILED", time.monotonic() - started
    print(f"{variant.name:24} {verdict:6} {seconds:5.0f} s  {lines[-1]}")
    sys.stdout.flush()
    return done.returncode == 0


def main() -> int:
    """Run every variant; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="a part of the variants' names")
    chosen, arguments = parser.parse_known_args()
    variants = [v for v in (*VARIANTS, *other_pythons()) if (chosen.only or "").lower() in v.name.lower()]
    results = [run(variant, arguments) for variant in variants]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
