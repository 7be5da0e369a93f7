"""How a sentence encoder makes one vector of a text, as its checkpoint says in sentence-transformers' form."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import CheckpointError

FILE = "modules.json"


@dataclass(frozen=True)
class Pooling:
    """The mean of a text's tokens, or its first one; of length 1 if `normalised`."""

    mean: bool
    normalised: bool

    @staticmethod
    def of(checkpoint: Path) -> "Pooling":
        """Read modules.json and the pooling that it names; refuse a checkpoint that has none, or another one."""
        try:
            modules = json.loads((checkpoint / FILE).read_text(encoding="utf-8"))
            kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
            place = checkpoint / modules[kinds.index("Pooling")]["path"] / "config.json"
            said = json.loads(place.read_text(encoding="utf-8"))
            modes = {name for name, on in said.items() if name.startswith("pooling_mode_") and on}
            modes |= {f"pooling_mode_{said['pooling_mode']}_"} if isinstance(said.get("pooling_mode"), str) else set()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(
                f"{checkpoint} is an encoder without a head, and has no {FILE} that says how to pool its tokens; serve "
                "a sentence encoder as sentence-transformers saves it, a classifier, or a model that writes"
            ) from None
        known = {"Transformer", "Pooling", "Normalize"}
        if len(modes) != 1 or not set(kinds) <= known or (mode := modes.pop().split("_")[2]) not in ("mean", "cls"):
            raise CheckpointError(
                f"{checkpoint} pools in a way that tanbr does not ({', '.join([*kinds, *modes])}); it takes the mean "
                "of the tokens, or the first one, normalised or not"
            )
        return Pooling(mode == "mean", "Normalize" in kinds)

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Make vectors (n, width) of tokens (n, length, width), by their attention mask (n, length)."""
        real = mask.unsqueeze(-1).to(tokens.dtype)
        pooled = (tokens * real).sum(dim=1) / real.sum(dim=1).clamp(min=1e-9) if self.mean else tokens[:, 0]
        return torch.nn.functional.normalize(pooled, dim=1) if self.normalised else pooled
