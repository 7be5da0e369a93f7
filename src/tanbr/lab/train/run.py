"""A training run with a resumable state on disk: interrupted and started again, it ends in the same weights."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tanbr.errors import OutputError, StateError
from tanbr.files import write_atomically
from tanbr.lab.corpus import Progress
from tanbr.lab.train.config import RunConfig


class Curve:
    """The record of a run, beside its state or result: a JSON line per entry; a resumed run goes on after them."""

    def __init__(self, beside: Path) -> None:
        self.path = beside.with_suffix(".jsonl")

    def rewind(self, step: int) -> None:
        """Forget what was recorded after `step`."""
        kept = [line for line in self.entries() if line["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, step: int, losses: Mapping[str, float]) -> None:
        """Record losses by name at a step."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "loss": dict(losses)}) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """Read every whole line."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}}")]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Give steps and losses of one name."""
        found = [(line["step"], line["loss"][name]) for line in self.entries()]
        return [step for step, _ in found], [value for _, value in found]


CLIP = 1.0  # largest norm of a step's gradient, the usual value


@dataclass
class Run:
    """AdamW over `groups`, the rates rising over the warm-up and falling along half a cosine."""

    phase: str
    model: nn.Module  # everything that is trained
    groups: list[dict[str, Any]]  # AdamW's parameter groups
    gradients: Callable[[int], Mapping[str, float]]  # leaves a step's gradients; its losses depend on the step alone
    steps: int
    config: RunConfig
    state: Path
    report: Progress
    origin: str = ""  # tells checkpoints apart: a state belongs to the one that the run started from
    decay: float = 0.01  # AdamW's decoupled weight decay
    falls: bool = True  # whether the rates fall after the warm-up
    ignored: frozenset[str] = frozenset()  # settings that may change before this run resumes

    def train(self) -> None:
        """Take the steps that are still to take; their state is saved now and then, and after the last."""
        optimizer = torch.optim.AdamW(self.groups, weight_decay=self.decay, fused=True)
        rates = [group["lr"] for group in optimizer.param_groups]
        done = self._resume(optimizer)
        curve = Curve(self.state)
        curve.rewind(done)
        smoothed: float | None = None
        recent: list[Mapping[str, float]] = []
        for step in range(done, self.steps):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * self._share(step)
            optimizer.zero_grad()
            losses = self.gradients(step)
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
            optimizer.step()
            loss = sum(losses.values()) / len(losses)
            if not math.isfinite(loss):
                raise StateError(f"the loss of {self.phase} is {loss} at step {step}; lower the rates")
            smoothed = loss if smoothed is None else 0.98 * smoothed + 0.02 * loss
            recent.append(losses)
            if (step + 1) % self.config.log_every == 0:
                curve.add(step + 1, _means(recent))
                recent.clear()
            self.report(self.phase, step + 1, self.steps, f"loss {smoothed:.3f}")
            if (step + 1) % self.config.save_every == 0 or step + 1 == self.steps:
                self._save(optimizer, step + 1)

    def _share(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self.config.warmup)
        if not self.falls:
            return warm
        return warm * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * step / self.steps)))

    def _run(self) -> str:
        settings = self.config.model_dump(exclude={"device", "precision", *self.ignored})
        return json.dumps({"phase": self.phase, "origin": self.origin, "config": settings})

    def _changing(self) -> dict[str, Tensor]:
        """What steps change: trained parameters, each once, buffers, and what modules keep beside them."""
        trained = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        buffers = {name for name, _ in self.model.named_buffers()}
        return {
            name: value
            for name, value in self.model.state_dict().items()
            if name in trained | buffers or name.endswith("_extra_state")
        }

    def _save(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        tensors = {f"model/{name}": value.cpu().contiguous() for name, value in self._changing().items()}
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value.cpu() for name, value in moments.items()}
        partial = self.state.with_suffix(".partial")
        try:
            save_file(tensors, partial, metadata={"step": str(step), "run": self._run()})
            partial.replace(self.state)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise OutputError(f"cannot write {self.state} ({error}); make room, and start again: it resumes") from None

    def _resume(self, optimizer: torch.optim.Optimizer) -> int:
        """Take over the state, if there is one; the number of steps taken."""
        if not self.state.exists():
            return 0
        try:
            with safe_open(self.state, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except SafetensorError as error:
            raise StateError(f"{self.state} is corrupt ({error}); delete it to start this phase again") from None
        if metadata.get("run") != self._run() or "step" not in metadata:
            raise StateError(
                f"{self.state} belongs to a run with other settings or from another checkpoint; "
                "choose another --out or delete it"
            )
        saved = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
        if saved.keys() != self._changing().keys():
            raise StateError(f"{self.state} belongs to a run of another model; choose another --out or delete it")
        self.model.load_state_dict(saved, strict=False)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, moment = name.split("/")
                moments.setdefault(int(index), {})[moment] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        return int(metadata["step"])


def _means(records: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(record[name] for record in records) / len(records) for name in records[0]}
