"""What a process that only serves holds in memory: run as a process of its own, it prints its figures."""

import gc
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from tanbr.errors import StateError
from tanbr.lab.paper.random_moe import METHODS, Models
from tanbr.lab.paper.timing import routed


def memory(folder: Path, method: str, *, batch: int, length: int, device: str = "cpu") -> dict[str, float] | None:
    """Measure a process that loads one model and answers one batch; None where the system does not tell.

    On CUDA it is the memory of tensors there.
    """
    if not device.startswith("cuda") and not Path("/proc/self/clear_refs").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(folder), method, str(batch), str(length), device],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise StateError(f"the process that measures memory failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


@torch.inference_mode()
def serve(folder: Path, method: str, *, batch: int, length: int, device: str = "cpu") -> dict[str, float]:
    """Load what a method needs, let go of the rest, answer a batch, and look at what was resident meanwhile."""
    models = Models(folder, device=device)
    moe, on_cuda = models.moe, models.device.type == "cuda"
    before, mapped = (0, 0) if on_cuda else (_status("VmRSS"), _status("RssFile"))
    name, routing = METHODS[method]
    work = routed(models.get(name), routing(batch), models.work(name, "forward", batch=batch, length=length))
    models.forget()
    moe.checkpoint.release()
    gc.collect()
    # what was only read to be put in int8 may still be mapped: page cache, not the model's
    idle = _status("RssFile") - mapped if method.endswith("int8") else 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(models.device)
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts here
    work()
    peak = torch.cuda.max_memory_allocated(models.device) if on_cuda else _status("VmHWM")
    whole = sum(spec.numel for spec in moe.checkpoint.specs.values())
    dense = sum(math.prod(shape) for shape in moe.plan.shapes.values())
    return {
        "parameters_loaded": whole if name.startswith("moe") else dense,
        "peak_resident": peak - before - idle,
        "peak_process": peak,
    }


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    place, asked, rows, tokens, on = sys.argv[1:]
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(serve(Path(place), asked, batch=int(rows), length=int(tokens), device=on)) + "\n")
