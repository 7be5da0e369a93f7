"""Answers that are computed once: a text answered under a blend is remembered, whichever method asked.

Fixed merges cost their pool of texts once instead of every slot; a router that returns to a blend pays for new texts
only. What methods see is what `serve.Engine` would have answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from tanbr.errors import CheckpointError
from tanbr.experiments.replay import Replay
from tanbr.merge import Moe
from tanbr.serve.engine import Engine, Said
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import Blend, FloatArray, Text, as_blend


@dataclass(frozen=True)
class Now:
    """What answers."""

    version: int


class Server(Protocol):
    """What the slot loop needs of an engine."""

    @property
    def live(self) -> Any:
        """What answers, with its merge `version`."""
        ...

    def swap(self, blend: ArrayLike, **_: Any) -> int:
        """Serve a blend (K,); the merge version that now answers."""
        ...

    def answer(self, texts: Sequence[Text]) -> Said:
        """Answer texts (n,)."""
        ...


class Answers:
    """One model for all methods, and every answer it has given."""

    def __init__(self, moe: Moe) -> None:
        self.experts = moe.num_experts
        self.model = model_for(moe)
        self.kept: dict[str, nn.Module] = {}  # merges that are no blend, by name
        self._known: dict[bytes | str, dict[Text, Any]] = {}  # logits (columns,), or what was written
        self._held: bytes | str | None = None  # what the model holds now

    def of(self, what: Blend | str, texts: Sequence[Text]) -> Said:
        """Answer texts (n,) with a blend (K,), or with a merge that is kept under a name."""
        key = what if isinstance(what, str) else what.tobytes()
        known = self._known.setdefault(key, {})
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            if key != self._held:
                self._held = None  # an exception on the way leaves the model in doubt
                self._hold(what)
                self._held = key
            known.update(zip(new, self.model.answer(new), strict=True))
        said = [known[text] for text in texts]
        return np.array(said).reshape(len(texts), len(self.model.columns)) if self.model.columns else said

    def _hold(self, what: Blend | str) -> None:
        if not isinstance(what, str):
            self.model.swap(what)
        elif isinstance(self.model, Replay):
            self.model.put(self.kept[what])
        else:
            raise CheckpointError("merges that are no blend can be compared for BERT-MoE checkpoints only")


class Blended:
    """A method's own view of the answers: the blend that its router chose last."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._blend = as_blend(np.full(answers.experts, 1 / answers.experts), experts=answers.experts)
        self.live = Now(0)

    def swap(self, blend: ArrayLike, **_: Any) -> int:
        """Answer by a blend (K,) from now on."""
        wanted = as_blend(blend, experts=self._answers.experts)
        if not (self.live.version and np.array_equal(wanted, self._blend)):
            self._blend, self.live = wanted, Now(self.live.version + 1)
        return self.live.version

    def answer(self, texts: Sequence[Text]) -> Said:
        """Answer texts (n,)."""
        return self._answers.of(self._blend, texts)


class Unmoved:
    """A server that heeds no router."""

    live = Now(1)

    def swap(self, blend: ArrayLike, **_: Any) -> int:  # noqa: ARG002
        """Stay."""
        return self.live.version


class Merged(Unmoved):
    """A merge that is no blend."""

    def __init__(self, answers: Answers, key: str) -> None:
        self._answers, self._key = answers, key

    def answer(self, texts: Sequence[Text]) -> Said:
        """Answer texts (n,)."""
        return self._answers.of(self._key, texts)


class Tagged(Unmoved):
    """A model told every request's task v, which it answers with the v-th of its blends (V, K).

    With one-hot blends that is the un-merged MoE under `moe.layer.TaskRouting`, one expert a request; several at once
    are Task-Merging.
    """

    def __init__(self, answers: Answers, task_of: Mapping[Text, int], blends: FloatArray) -> None:
        self._answers, self._task_of = answers, task_of
        self._blends = [as_blend(blend, experts=answers.experts) for blend in blends]

    def answer(self, texts: Sequence[Text]) -> Said:
        """Answer each text (n,) with its task's own blend."""
        tasks = np.array([self._task_of[text] for text in texts], dtype=np.intp)
        said: list[Any] = [None] * len(texts)
        for task in np.unique(tasks):
            own = np.flatnonzero(tasks == task).tolist()
            for i, one in zip(own, self._answers.of(self._blends[task], [texts[i] for i in own]), strict=True):
                said[i] = one
        columns = len(self._answers.model.columns)
        return np.array(said).reshape(len(texts), columns) if columns else said


def model_for(moe: Moe) -> Replay | Engine:
    """Build the quickest model for asking the same texts of many blends."""
    return Replay(moe) if moe.family.model_type == "bert_moe" else Engine(moe)


def check_head(model: Replay | Engine, space: LabelSpace) -> None:
    """Refuse a model whose head does not answer in the label space of the data; one that writes has no head."""
    if model.columns and model.columns != space.columns:
        raise CheckpointError(
            f"{model.moe.path} answers {', '.join(model.columns[:8])}, but the data's labels are "
            f"{', '.join(space.columns)}; pass the data it was trained on (--data), or another checkpoint"
        )
