"""How a model is served: slots and batches, rewards, the guard."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ByteSize, Field, Strict

from tanbr.config import Section
from tanbr.loop.config import LoopConfig

File = Annotated[Path, Strict(strict=False)]  # files of settings have strings for paths


class StartConfig(Section):
    """What a server starts from, and where it keeps what it learns."""

    checkpoint: str | None = None
    """Folder of an MoE checkpoint, a hub id, or a list of experts. Default: the embedded model."""
    experts: tuple[str, ...] = ()
    """Fine-tuned copy or adapter of the checkpoint; repeatable. The checkpoint is the base."""
    blend_only: Literal["all", "ffn"] | None = None
    """What of these experts is blended; everything that differs, or FFNs, with the base's rest."""
    base: bool | None = None
    """Whether the base is one more expert; by default where nothing says which expert belongs to which task."""
    state: File = Path("out/serve")
    """Folder for what is learned; a server that starts there again continues."""
    history: File | None = None
    """Past requests with their tasks, for the monitor; JSON lines {"text", "task", "label"?}, or labelled files."""
    adopt: bool = False
    """Go on with a state of other experts, tasks or settings; they are matched by name and weights, after a backup."""
    check: bool = True
    """Measure at start which way of serving earns most; on rows that the history holds back, kept in the state."""
    force: bool = False
    """Serve even if `tanbr inspect` says not to merge."""
    token_file: File | None = None
    """File with the clients' token, or tokens.toml with a name and token for each; or set TANBR_TOKEN."""
    admin_token_file: File | None = None
    """File with the operators' token; or set TANBR_ADMIN_TOKEN."""


class ServeConfig(LoopConfig):
    """How a model is served."""

    hold_back: float = Field(default=0.05, ge=0, le=1)
    """Share of slots that serve the start blend, to see what learning is worth; a fifth of it once learning pays."""
    blend: Literal["even", "proportional"] | tuple[float, ...] | None = None
    """Start blend, as proportional, even or 0.5,0.5; proportional to the mix if experts' tasks are known."""
    models: int | None = Field(default=None, ge=1, le=255)
    """Merged models to serve side by side (G); each request goes to the best for its task. The self-check chooses."""
    memory: ByteSize | None = None
    """Most memory for the models that answer, as 300MB; by default one model less than un-merged."""
    unmerged: bool = False
    """Serve every expert as it is, each request by the expert of its task; K models, and nothing to learn."""
    answers: Literal["labels", "posterior"] = "posterior"
    """How a label is chosen; posterior weighs each label by the chance that the text is of a task with it."""
    practice: float = Field(default=0.1, ge=0, le=1)
    """Most of one core's time to try blends on logged requests, while none waits; 0 leaves it off."""
    slot_requests: int | None = Field(default=None, ge=1)
    """End a slot after this many requests; until it has turned, a quarter more are answered and others wait 0.5 s."""
    slot_seconds: float | None = Field(default=None, gt=0)
    """End a slot after this many seconds; 60 if neither is given, and with both, whichever comes first."""
    batch: int = Field(default=32, ge=1)
    """Most texts in a batch."""
    queue: int = Field(default=1024, ge=1)
    """Texts that may wait for an answer; beyond it a request is refused."""
    max_length: int | None = Field(default=None, ge=8)
    """Longest text in tokens, the model's own limit if not given; a longer text to classify is cut, and it is said."""
    too_long: Literal["refuse", "cut"] = "refuse"
    """What becomes of a prompt that is too long: it is refused, or cut on the left, and it is said."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to write for one prompt, the model's own limit if not given; asking for more is refused."""
    engine: Literal["vllm", "llamacpp"] | None = None
    """Let this running engine generate; docs/engines.md."""
    engine_urls: tuple[str, ...] = ()
    """Its address, as http://127.0.0.1:8100; repeatable for whole models, one each. TANBR_ENGINE_TOKEN is its key."""
    engine_folder: str | None = None
    """Where merges are left for it; shared memory, or a temporary folder, if not given."""
    conversation_seconds: float = Field(default=600, ge=0)
    """How long a conversation before an engine may pause and still be answered by the version it began with."""
    device: str = "cpu"
    """Torch device, as cuda:1; the model runs on it."""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Batches that are answered at once; a core each, at most 8, if not given (1 on a GPU or with an engine)."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a worker's arithmetic; the cores divided by the workers that are busy if not given."""
    backend: Literal["auto", "torch", "onnx"] = "auto"
    """What runs the model; auto takes the faster in a trial at the first start."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of its arithmetic; auto takes the fastest that gives 99.5% of a classifier's labels as fp32 does."""
    low_memory: bool = False
    """Merge in place, with a pause; otherwise into a spare FFN buffer."""
    method: str | None = None
    """How to merge, as regression or ties:density=0.3; the list's, the self-check's choice, or average."""
    merge_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the time that a background merge works; it rests the other part, so that requests stay fast."""
    keep_slots: int = Field(default=10_000, ge=10)
    """Slots whose requests and feedback are kept; feedback for older requests is refused as unknown."""
    keep_requests: int = Field(default=1_000_000, ge=1_000)
    """Requests (and pieces of feedback) that are kept; whole slots are forgotten when there are more."""
    seed: int = Field(default=0, ge=0)
    """Seed of the router, and of which slots are held back."""
    max_active: int | None = Field(default=None, ge=1)
    """B, most experts in a blend; all of them if not given."""


NICE = 10  # beside merges without a pause, the slowest request in a hundred took 1.15 times as long; with 0, 1.31
MOST_WORKERS = 8  # by default: Python runs one thread at a time, and more would wait for it rather than for the model


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def step_back() -> None:
    """Lower this thread's priority, where threads have one of their own; only administrators can raise it again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
