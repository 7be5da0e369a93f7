"""What a merged model answers in a comparison, each text once under a blend, whichever method asked.

Fixed merges cost their pool of texts once instead of every slot; a router that returns to a blend pays for new texts
only.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import Answer
from tanbr.types import Blend, FloatArray, Text


class Answers:
    """One model for all methods, and every answer it has given."""

    def __init__(self, model: DenseModel) -> None:
        self.experts = model.moe.num_experts
        self.model = model
        self.kept: dict[str, nn.Module] = {}  # merges that are no blend, by name
        self._known: dict[bytes | str, dict[Text, Answer]] = {}
        self._held: bytes | str | None = None  # what the model holds now

    def of(self, what: Blend | str, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts with a blend (K,), or with a merge that is kept under a name."""
        key = what if isinstance(what, str) else what.tobytes()
        known = self._known.setdefault(key, {})
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            if key != self._held:
                self._held = None  # an exception on the way leaves the model in doubt
                self.model.put(self.kept[what]) if isinstance(what, str) else self.model.swap(what)
                self._held = key
            known.update(zip(new, self.model.answers(new), strict=True))
        return [known[text] for text in texts]

    def each(self, blends: Sequence[Blend] | FloatArray, of: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Answer text i with the blend whose number is of[i]."""
        found: dict[Text, Answer] = {}
        for number in np.unique(of):
            own = [text for text, one in zip(texts, of, strict=True) if one == number]
            found |= zip(own, self.of(blends[number], own), strict=True)
        return [found[text] for text in texts]
