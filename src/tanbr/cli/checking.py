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
    for package, extra in needed_packages().items():
        version, use = _version(package), EXTRAS.get(extra, "every command")
        wanted = f"tanbr[{extra}]" if extra else package
        lines[package] = version or f"missing, for {use}: pip install '{wanted}'"
        broken = broken or (version is None and not extra)
    for name, said in lines.items():
        console.print(f"{name:20} {said}", soft_wrap=True, markup=False)
    if broken:
        raise typer.Exit(2)


def needed_packages() -> dict[str, str]:
    """Give the packages that tanbr's own metadata names, each with its extra ("" for what every installation has)."""
    found: dict[str, str] = {}
    for line in metadata.requires("tanbr") or []:
        package, marker = re.split(r"[^\w.-]", line, maxsplit=1)[0], line.partition(";")[2]
        extra = re.search(r"extra == ['\"](\w+)", marker)
        if extra is None or extra[1] in EXTRAS:
            found.setdefault(package, "" if extra is None else extra[1])
    return found


def machine() -> dict[str, str]:
    """Look at the processor, the memory and torch."""
    facts = {
        "tanbr": tanbr.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(usable_cores()),
        "memory": decimal(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
    }
    if _version("torch") is not None:
        import torch

        from tanbr.serve.backends.choose import instructions

        facts["instructions"] = ", ".join(instructions("cpu")) or "none for bf16 or int8"
        facts["arithmetic"] = f"{torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}"
        facts["cuda"] = f"{torch.cuda.device_count()} devices"
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
