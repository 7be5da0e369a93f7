"""Lists of adapters that leave one task's out, for tasks that no expert learned, and a pool of random adapters.

    python -m tanbr.lab.studies.left_out out/adapters/experts.toml out/left-out --tasks STS-B,MNLI,RTE,CoLA
    tanbr simulate out/left-out/RTE.toml --data glue/ --newcomer RTE --card none --methods tanbr,average,base,probing

Each list ends with the base as an expert. The adapters of the lists `random-TASK.toml` have random weights, as large as
the trained ones.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tanbr.files import write_atomically
from tanbr.merge.sources.expert_list import read_list


def write(source: Path, out: Path, tasks: list[str]) -> None:
    """Write the lists and the random adapters."""
    found = read_list(source)
    out.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator().manual_seed(0)
    places = {one.task: Path(one.path) for one in found.trained}
    drawn = {task: out / "random" / task for task in places}
    for task, place in places.items():
        drawn[task].mkdir(parents=True, exist_ok=True)
        (drawn[task] / "adapter_config.json").write_bytes((place / "adapter_config.json").read_bytes())
        weights = load_file(place / "adapter_model.safetensors")
        noise = {name: torch.randn(one.shape, generator=rng) * one.float().std() for name, one in weights.items()}
        save_file(noise, drawn[task] / "adapter_model.safetensors")
    for left in tasks:
        for name, pool in ((left, places), (f"random-{left}", drawn)):
            lines = [f"base = {json.dumps(os.path.relpath(found.base, out))}"]
            for task, place in pool.items():
                if task != left:
                    lines += ["[[experts]]", f"path = {json.dumps(os.path.relpath(place, out))}", f'task = "{task}"']
            write_atomically(out / f"{name}.toml", "\n".join([*lines, "[[experts]]", "base = true", ""]))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="list of adapters over one base, each with its task")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--tasks", default="STS-B,MNLI,RTE,CoLA", help="to leave out, each in turn")
    given = parser.parse_args()
    write(given.source, given.out, given.tasks.split(","))


if __name__ == "__main__":
    main()
