"""`tanbr config` and `tanbr doctor`: what is set, and what this machine can do."""

import os
import platform
import re
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.filesize import decimal
from typer import Option

import tanbr
from tanbr.cli.display import console
from tanbr.cli.options import ConfigFile, examples
from tanbr.lab import settings as configuration
from tanbr.serve.config import usable_cores

app = typer.Typer()
EXTRAS = {  # extra → what needs it
    "parquet": "--data with Parquet files",
    "adapters": "pretrain --adapters",
    "ray": "serve --ray",
    "onnx": "serve --backend onnx",
}


@app.command(
    epilog=examples("tanbr config > tanbr.toml", "tanbr config --section serve", "tanbr config --config mine.toml")
)
def config(
    section: Annotated[str | None, Option(help="Print only this section: router, serve.rewards, …")] = None,
    config: ConfigFile = None,
) -> None:
    """Print every setting as TOML with its meaning: the defaults, or a file's settings laid over them."""
    sys.stdout.write(configuration.to_toml(configuration.load(config), section=section) + "\n")


@app.command(epilog=examples("tanbr doctor"))
def doctor() -> None:
    """Show what is installed, what the processor can do, and which commands lack something."""
    lines, broken = machine(), False
    for needed in metadata.requires("tanbr") or []:
        package, of = re.split(r"[^\w.-]", needed, maxsplit=1)[0], re.search(r"extra == ['\"](\w+)", needed)
        extra = "" if of is None else of[1]
        if extra and (extra not in EXTRAS or package in lines):
            continue
        lines[package] = version_of(package) or (
            f"missing, for {EXTRAS[extra]}: pip install 'tanbr[{extra}]'" if extra else
            f"missing, for every command: pip install '{package}'"
        )  # fmt: skip
        broken = broken or (not extra and version_of(package) is None)
    for name, said in lines.items():
        console.print(f"{name:20} {said}", soft_wrap=True, markup=False)
    if broken:
        raise typer.Exit(2)


def machine() -> dict[str, str]:
    """Look at the processor, the memory and torch."""
    facts = {
        "tanbr": tanbr.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(usable_cores()),
        "memory": decimal(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
    }
    if version_of("torch") is not None:
        import torch

        from tanbr.serve.backends.choose import instructions

        facts["instructions"] = ", ".join(instructions("cpu")) or "none for bf16 or int8"
        facts["arithmetic"] = f"{torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}"
        facts["cuda"] = f"{torch.cuda.device_count()} devices"
    return facts


def version_of(package: str) -> str | None:
    """Find the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
