"""What a machine has: packages, processor, memory."""

import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tanbr
from tanbr.serve.config import usable_cores

SPECIAL = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_tile", "amx_int8")  # what int8 and float32 gain from
EVERY = "every command"
PACKAGES = {  # package → the commands that need it
    "numpy": EVERY,
    "scipy": EVERY,
    "scikit-learn": EVERY,
    "pydantic": EVERY,
    "torch": "all but config and doctor",
    "transformers": "all but config and doctor",
    "safetensors": "all but config and doctor",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httpx2": "send, traffic, push, serve --engine",
    "matplotlib": "demo, simulate, reproduce, pretrain, finetune",
    "jinja2": "demo, reproduce",
    "pyyaml": "lists of experts in YAML",
    "pyarrow": "--data with Parquet files",
    "datasets": "--data hub",
    "peft": "pretrain --adapters",
    "ray": "serve --ray",
    "onnx": "serve --backend onnx",
    "onnxruntime": "serve --backend onnx",
}
OPTIONAL = {
    "datasets": "tanbr[hub]",
    "pyarrow": "tanbr[parquet]",
    "peft": "tanbr[adapters]",
    "ray": "tanbr[ray]",
    "onnx": "tanbr[onnx]",
    "onnxruntime": "tanbr[onnx]",
}  # package → the extra that brings it


@dataclass(frozen=True)
class Package:
    """A package that some command needs."""

    name: str
    version: str | None  # None if it is not installed
    needed_for: str


@dataclass(frozen=True)
class Machine:
    """What `tanbr doctor` found."""

    facts: dict[str, str]
    packages: list[Package]
    missing: list[str]  # a sentence each
    broken: bool  # whether something is missing that is no extra


def examine() -> Machine:
    """Look at this machine."""
    packages = [Package(name, _version(name), needed_for) for name, needed_for in PACKAGES.items()]
    absent = [package for package in packages if package.version is None]
    missing = [f"{one.name}, for {one.needed_for}: pip install '{OPTIONAL.get(one.name, one.name)}'" for one in absent]
    if not (Path(tanbr.embedded()) / "model.safetensors").is_file():
        missing.append("the embedded model, for every command without a checkpoint: install the package again")
    broken = len(missing) > sum(one.name in OPTIONAL for one in absent)
    instructions = _instructions()
    facts = {
        "tanbr": tanbr.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(usable_cores()),
        "instructions": ", ".join(instructions) or "none of " + ", ".join(SPECIAL),
        "memory": _memory(),
    }
    if _version("torch") is not None:
        facts |= _torch_facts()
    return Machine(facts, packages, missing, broken)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _instructions() -> list[str]:
    """List the instruction sets of the processor; none where the system does not tell."""
    try:
        known = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return []
    return [name for name in SPECIAL if name in known]


def _memory() -> str:
    try:
        table = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE))
        return f"{int(table['MemAvailable']) / 1e6:.1f} GB free of {int(table['MemTotal']) / 1e6:.1f} GB"
    except (OSError, KeyError):
        return "the system does not tell"


def _torch_facts() -> dict[str, str]:
    import torch

    return {
        "torch's arithmetic": f"{torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}",
        "int8": ", ".join(engine for engine in torch.backends.quantized.supported_engines if engine != "none") or "no",
        "cuda": f"{torch.cuda.device_count()} devices" if torch.cuda.is_available() else 'no; device must be "cpu"',
    }
