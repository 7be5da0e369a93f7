"""The record of a training run: one JSON line per entry, each naming its step."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tanbr.files import write_atomically


class Curve:
    """Lines of a file, after which a resumed run goes on as if it had not been interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, out: Path) -> "Curve":
        """Give the curve of the run whose result is `out`."""
        return cls(out.with_suffix(".jsonl"))

    def rewind(self, step: int) -> None:
        """Forget what was recorded after `step`."""
        kept = [line for line in self.entries() if line["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Record values of a kind ("loss", "figure", …) at a step."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, kind: dict(values)}) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """Read every whole line."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}}")]

    def series(self, kind: str, name: str) -> tuple[list[int], list[float]]:
        """Give steps and values of one name of a kind."""
        found = [(line["step"], line[kind][name]) for line in self.entries() if name in line.get(kind, {})]
        return [step for step, _ in found], [value for _, value in found]
