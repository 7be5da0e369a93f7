"""Which backend and precision serve a model: the fastest of those that answer as float32 does, by a trial at start.

The trial asks as serving does, by as many threads as there are workers: these wait for each other between operations.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tanbr.errors import ConfigError, InputError
from tanbr.moe.text import Inputs
from tanbr.serve.config import MOST_WORKERS, usable_cores
from tanbr.serve.decode import Row
from tanbr.types import FloatArray

Precision: TypeAlias = Literal["fp32", "bf16", "int8"]  # of products; fp32 is the checkpoint's own where that is less
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")
AGREEMENT = 0.995  # least share of labels that must be those of float32 …
LEAST = 200  # … of so many texts: one in 200 may differ
BROKEN = 0.9  # a precision that was asked for is refused below this: the kernels are wrong, or the model cannot bear it
MOVED = 0.95  # least share of texts that int8 moves by no more than the margin within which float32 answers again
GAIN = 1.05  # how much faster another way has to be than the one before it …
REDUCED = 1.7  # … and a lesser precision by torch: bf16 by torch was 1.5 times as fast in the trial as fp32 by ONNX
# Runtime (MiniLM), and at the server 1.14 times in whole batches, 0.84 times with single texts
SECONDS = 5.0  # of the trial, and what the last round takes longer
ROUNDS = 7  # most of them; the best of each way counts
UNREAD: Inputs = {name: np.ones((32, 24), np.int64) for name in ("input_ids", "attention_mask")}  # is timed where there
# is no text: as long as most of GLUE's, and the same for every way

log = logging.getLogger("tanbr.serve")


@dataclass(frozen=True)
class Judged:
    """How a way answers beside float32."""

    agreement: float | None = None  # share of the labels that are the same; None: nobody has asked
    margin: float = 0.0  # where the two best columns are no further apart, float32 answers again …
    again: float = 0.0  # … which is this share of texts

    def __str__(self) -> str:
        """As the line of the trial has it."""
        again = f", {self.again:.0%} of texts again in fp32" if self.again else ""
        return "" if self.agreement is None else f" ({self.agreement:.1%} of labels{again})"


@dataclass
class Way:
    """One way to run a model, and what the trial finds out about it."""

    backend: str
    precision: Precision
    make: Callable[[], Any]  # a backend
    made: Any = None
    judged: Judged = Judged()
    seconds: float = 1.0  # beside the first way

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.precision} by {self.backend}"


def instructions(device: str) -> tuple[str, ...]:
    """Name what a device multiplies natively, of bf16 and int8."""
    if torch.device(device).type == "cuda":
        return ("bf16",) if torch.cuda.is_bf16_supported(including_emulation=False) else ()
    if torch.device(device).type != "cpu":
        return ()
    found = {
        "bf16": torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
        "int8": torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported(),
    }
    return tuple(name for name, has in found.items() if has)


def refused(precision: str, device: str) -> ConfigError | None:
    """Say why a device cannot serve in a precision: bf16 without its instructions takes five times as long as fp32."""
    kind = torch.device(device).type
    if precision == "int8" and kind != "cpu":
        return ConfigError(f"int8 runs on the CPU (got device {device!r}); set precision to bf16 or fp32")
    if precision == "bf16" and kind == "cpu" and "bf16" not in instructions(device):
        return ConfigError("this CPU has neither AVX-512-BF16 nor AMX: bf16 is slower than fp32; use fp32")
    return None


def chosen(exact: Any, ways: Sequence[Way], batches: Sequence[Inputs], *, device: str, asked: str) -> Any:
    """Make the fastest of the ways that has the labels of `exact`, in float32; `asked` for, any that is no nonsense."""
    rows = sum(len(inputs["input_ids"]) for inputs in batches)
    said, kept = "", [way for way in ways if way.precision == "fp32"]
    if asked == "auto" and rows < LEAST and len(kept) < len(ways):
        said = f"{rows} texts of a history are too few to judge a precision by ({LEAST} are needed), so fp32 serves"
        ways = kept
    rows = 0 if exact.embeds else rows  # a vector is no answer that could be the same
    truth = _answers(exact, batches) if rows and len(kept) < len(ways) else None
    least = AGREEMENT if asked == "auto" else BROKEN
    timed = batches or [UNREAD]
    ready: list[Way] = []
    lines: list[str] = []
    for way in ways:
        try:
            way.made = way.make()
            if way.precision != "fp32" and truth is not None:
                way.judged = judge(_answers(way.made, batches), truth, again=way.made.exact is not None)
            elif len(ways) > 1:
                way.made.classify(timed[0])
        except Exception as error:  # whatever a library raises: another way serves as well
            if len(ways) == 1:
                raise
            lines.append(f"{way} fails ({type(error).__name__}: {str(error).strip().splitlines()[0]})")
            continue
        if way.judged.agreement is not None and way.judged.agreement < least:
            lines.append(f"{way} has {way.judged.agreement:.1%} of fp32's labels, too few")
        else:
            ready.append(way)
    if not ready:
        raise InputError(f"{'; '.join(lines)}: serve this model in fp32")
    if len(ready) > 1:
        workers = min(usable_cores(), MOST_WORKERS) if device == "cpu" else 1
        # of the processor, not of the clock: whatever else runs at a server's start is over when it serves
        clock = time.process_time if device == "cpu" else time.perf_counter
        seconds = trial([way.made for way in ready], timed, workers=workers, clock=clock)
        exactly = {way.backend: one for way, one in zip(ready, seconds, strict=True) if way.precision == "fp32"}
        for way, one in zip(ready, seconds, strict=True):
            way.seconds = one + way.judged.again * exactly.get(way.backend, 0.0)
        lines = [f"{way} {ready[0].seconds / way.seconds:.2f}{way.judged}" for way in ready] + lines
    best = ready[0]
    for way in sorted(ready[1:], key=lambda way: (way.precision != "fp32", way.backend == "torch")):
        slower = way.precision != "fp32" and best.backend != "torch" == way.backend
        best = way if way.seconds * (REDUCED if slower else GAIN) < best.seconds else best
    made, agreement = best.made, best.judged.agreement
    made.agreement, made.margin = agreement, best.judged.margin
    if len(ways) > 1 or agreement is not None:
        share = "" if agreement is None else f", {agreement:.1%} of {rows} labels as in fp32"
        made.chosen = f"{best} serves{share}" + (f"; speeds: {', '.join(lines)}" if len(ways) > 1 else "")
    made.chosen = ". ".join(filter(None, (said, made.chosen)))
    return made


def gaps(logits: FloatArray) -> FloatArray:
    """How far apart the two best columns of each text are (n,)."""
    if logits.shape[1] < 2:
        return np.full(len(logits), np.inf)
    best = np.partition(logits, -2, axis=1)
    return best[:, -1] - best[:, -2]


def judge(found: NDArray[Any], truth: NDArray[Any], *, again: bool) -> Judged:
    """Compare answers with float32's, logits (n, columns) or first tokens (n,); close ones float32 may answer `again`.

    The margin within which it does is as far as the two best labels of most texts move, or more if labels still change.
    """
    if found.ndim == 1:
        return Judged(float(np.mean(found == truth)))
    same = found.argmax(axis=1) == truth.argmax(axis=1)
    if not again or same.mean() < BROKEN:
        return Judged(float(same.mean()))
    rows, best = np.arange(len(truth))[:, None], truth.argsort(axis=1)[:, -2:]
    moved, between = np.ptp((found - truth)[rows, best], axis=1), gaps(found)
    changed, borne = np.sort(between[~same])[::-1], int((1 - AGREEMENT) * len(same))
    margin = float(max(np.quantile(moved, MOVED), changed[borne:].max(initial=0.0)))
    close = between <= margin
    return Judged(float(np.mean(same | close)), margin, float(close.mean()))


def _answers(backend: Any, batches: Sequence[Inputs]) -> NDArray[Any]:
    """List the logits of every text, or the first token that is written."""
    if not backend.writes:
        return np.concatenate([backend.classify(inputs) for inputs in batches])
    rows = [[Row(1) for _ in inputs["input_ids"]] for inputs in batches]
    for inputs, some in zip(batches, rows, strict=True):
        backend.generate(inputs, some)
    return np.array([row.tokens[0] if row.tokens else -1 for some in rows for row in some], dtype=np.intp)


def trial(
    backends: Sequence[Any], batches: Sequence[Inputs], *, workers: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Compare the seconds that each takes for a whole batch and single texts, asked by all workers at once."""
    middle = batches[len(batches) // 2]
    length = int(middle["attention_mask"][0].sum())
    one = {name: table[:1, :length] for name, table in middle.items()}
    best = np.full((len(backends), 2), np.inf)
    ends = time.monotonic() + SECONDS
    for _ in range(ROUNDS):
        for number, backend in enumerate(backends):
            for kind, asked in enumerate(([middle], [one] * 4)):
                seconds = _together(backend, asked, workers, clock)
                best[number, kind] = min(best[number, kind], seconds)
        if time.monotonic() > ends:
            break
    return [float(np.sqrt(np.prod(row / best[0]))) for row in best]


def _together(backend: Any, batches: Sequence[Inputs], workers: int, clock: Callable[[], float]) -> float:
    def work() -> None:
        torch.set_num_threads(1)  # of this thread's own arithmetic
        ready.wait()
        for inputs in batches:
            backend.classify(inputs)

    ready = threading.Barrier(workers + 1)
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = clock()
    for thread in threads:
        thread.join()
    return clock() - started
