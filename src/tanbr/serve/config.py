"""How a model is served: slots and batches, rewards, the guard."""

import os
from typing import Literal

from pydantic import ByteSize, Field

from tanbr.loop.config import LoopConfig


class ServeConfig(LoopConfig):
    """How a model is served."""

    blend: Literal["even", "proportional"] | tuple[float, ...] | None = None
    """The start blend, or its weights; proportional to the mix if the checkpoint names its experts' tasks, or even."""
    models: int = Field(default=1, ge=1, le=255)
    """G, merged models that are served side by side, each request by the one that is best for its task."""
    memory: ByteSize | None = None
    """Memory for the models, as 300MB; with it, as many are served side by side as fit, the spare included."""
    answers: Literal["labels", "posterior"] = "labels"
    """labels gives the most probable label; posterior weighs each by the chance that the text is of a task with it."""
    slot_requests: int | None = Field(default=None, ge=1)
    """A slot ends after this many requests (and the rest of a batch); if turning takes longer than that, later …"""
    slot_seconds: float | None = Field(default=None, gt=0)
    """… or after this many seconds (60 if neither is given); both: whichever comes first."""
    batch: int = Field(default=32, ge=1)
    """Most texts in a batch."""
    batch_wait: float = Field(default=0.0, ge=0)
    """Seconds a batch that is not full waits for more, once the model is free."""
    queue: int = Field(default=1024, ge=1)
    """Texts that may wait for an answer; beyond it a request is refused."""
    max_length: int | None = Field(default=None, ge=8)
    """Longest text in tokens, the model's own limit if not given; a longer text to classify is cut, and it is said."""
    too_long: Literal["refuse", "cut"] = "refuse"
    """What becomes of a prompt that is too long: it is refused, or cut on the left, and it is said."""
    max_tokens: int = Field(default=256, ge=1)
    """Most tokens that a model which writes, writes for one prompt; a client that asks for more is refused."""
    engine: Literal["vllm", "llamacpp"] | None = None
    """An engine that generates instead of this process (docs/engines.md)."""
    engine_url: str | None = None
    """Where it answers, as http://127.0.0.1:8100; TANBR_ENGINE_TOKEN is its key, if it has one."""
    engine_folder: str | None = None
    """Where merges are left for it; shared memory, or a temporary folder, if not given."""
    device: str = "cpu"
    """Torch device the model runs on."""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Batches that are answered at once; a core each, at most 8, if not given (1 on a GPU, 32 with an engine)."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a worker's arithmetic; the cores divided by the workers that are busy if not given."""
    backend: Literal["torch", "int8", "onnx"] = "torch"
    """What runs the model (docs/backends.md): torch or onnx in float32, or torch in int8, if that agrees with it."""
    int8_agreement: float = Field(default=0.98, ge=0, le=1)
    """Least share of probe answers that must be the same in int8, or it is refused."""
    low_memory: bool = False
    """Merge in place, with a pause, instead of into a spare FFN buffer."""
    method: str = "average"
    """How blends are merged (docs/methods.md), with settings as `ties:density=0.3`."""
    merge_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the time that a background merge works; it rests the other part, so that requests stay fast."""
    keep_slots: int = Field(default=10_000, ge=10)
    """Slots whose requests and feedback are kept; feedback for older requests is refused as unknown."""
    keep_requests: int = Field(default=1_000_000, ge=1_000)
    """Requests (and pieces of feedback) that are kept; whole slots are forgotten when there are more."""
    store_texts: bool = False
    """Whether the store keeps the texts of requests."""
    seed: int = Field(default=0, ge=0)
    """Seed of the router, and of which requests are shadowed."""
    max_active: int | None = Field(default=None, ge=1)
    """B, most experts in a blend; all of them if not given."""


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
