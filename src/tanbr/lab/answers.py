"""Answers that are computed once: a text answered under a blend is remembered, whichever method asked.

Fixed merges cost their pool of texts once instead of every slot; a router that returns to a blend pays for new texts
only. What methods see is what the server would have answered.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from tanbr.errors import CheckpointError
from tanbr.lab.classifier import Classifier, PlainClassifier
from tanbr.lab.dense import DenseModel
from tanbr.lab.writer import Writer
from tanbr.merge import Moe
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.types import Blend, FloatArray, Text, as_blend


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

    def each(self, blends: Sequence[Blend], of: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Answer text i with the blend whose number is of[i]."""
        found: dict[Text, Answer] = {}
        for number in np.unique(of):
            own = [text for text, one in zip(texts, of, strict=True) if one == number]
            found |= zip(own, self.of(blends[number], own), strict=True)
        return [found[text] for text in texts]


class Blended:
    """A method's own view of the answers: the blend that its router chose last."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._blend: Blend | None = None
        self.version = 0

    def swap(self, blend: ArrayLike) -> int:
        """Answer by a blend (K,) from now on; how many there have been."""
        wanted = as_blend(blend, experts=self._answers.experts)
        if self._blend is None or not np.array_equal(wanted, self._blend):
            self._blend, self.version = wanted, self.version + 1
        return self.version

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts; by all experts alike before the first swap."""
        even = np.full(self._answers.experts, 1 / self._answers.experts)
        return self._answers.of(even if self._blend is None else self._blend, texts)


class Unmoved:
    """A server that heeds no router."""

    def swap(self, blend: ArrayLike) -> int:  # noqa: ARG002
        """Stay."""
        return 1


class OtherMerge(Unmoved):
    """A merge that is no blend."""

    def __init__(self, answers: Answers, name: str) -> None:
        self._answers, self._name = answers, name

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer texts."""
        return self._answers.of(self._name, texts)


class Tagged(Unmoved):
    """A model told every request's task v, which it answers with the v-th of its blends (V, K).

    With one-hot blends that is the un-merged MoE under `moe.layer.TaskRouting`, one expert a request; several at once
    are Task-Merging.
    """

    def __init__(self, answers: Answers, task_of: Mapping[Text, int], blends: FloatArray) -> None:
        self._answers, self._task_of = answers, task_of
        self._blends = [as_blend(blend, experts=answers.experts) for blend in blends]

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answer each text with its task's own blend."""
        return self._answers.each(self._blends, np.array([self._task_of[text] for text in texts], np.intp), texts)


def model_for(moe: Moe, space: LabelSpace) -> DenseModel:
    """Build the model that answers in a label space; refuse a head that does not."""
    model: Classifier | PlainClassifier
    if moe.family.model_type == "bert_moe":
        model = Classifier(moe)
    elif str(moe.config["architectures"][0]).endswith("ForSequenceClassification"):
        model = PlainClassifier(moe, space)
    else:
        return Writer(moe, space)
    if model.columns != space.columns:
        raise CheckpointError(
            f"{moe.path} answers {', '.join(model.columns[:8])}, but the data's labels are "
            f"{', '.join(space.columns)}; pass the data it was trained on (--data), or another checkpoint"
        )
    return model
