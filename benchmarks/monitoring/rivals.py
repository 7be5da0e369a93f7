"""What the monitor is measured against: TF-IDF and logistic regression, with QuaPy's quantifiers on top."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

from monitoring.data import Data
from tanbr.monitor.features import read
from tanbr.types import Text

KINDS = ("TF-IDF + LR", "TF-IDF + surface + LR")  # the classifiers below the rivals


class Linear:
    """TF-IDF of word 1-2-grams and logistic regression, with or without the monitor's own surface features."""

    def __init__(self, texts: Sequence[Text], labels: Sequence[int], *, surface: bool) -> None:
        self._tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, lowercase=False)
        self._tfidf.fit([joined(text) for text in texts])
        self._scaler = StandardScaler().fit(read(texts).surface) if surface else None
        self.model = LogisticRegression(C=10, max_iter=300)
        self.inputs, self.labels = self.transform(texts), np.asarray(labels)
        self.model.fit(self.inputs, self.labels)

    def transform(self, texts: Sequence[Text]) -> Any:
        """Turn texts into the model's inputs."""
        words = self._tfidf.transform([joined(text) for text in texts])
        if self._scaler is None:
            return words
        return hstack([words, csr_matrix(self._scaler.transform(read(texts).surface))]).tocsr()


@cache
def rivals_of(data: Data, per_task: int, kind: str) -> tuple[Linear, dict[str, Any]]:
    """Fit a classifier on the history, and QuaPy's quantifiers on top of it."""
    history, tags = data.cut(per_task)
    linear = Linear(history, [data.tasks.index(tag) for tag in tags], surface="surface" in kind)
    return linear, quapy_methods(linear)


def joined(text: Text) -> str:
    """Give a pair as one text."""
    return text if isinstance(text, str) else f"{text[0]} ||| {text[1]}"


def quapy_methods(linear: Linear) -> dict[str, Any]:
    """Fit QuaPy's quantifiers on top of a classifier that is fitted already; none without QuaPy."""
    try:
        from quapy.method import aggregative
    except ImportError:
        return {}
    makers = {
        "EMQ": aggregative.EMQ(LogisticRegression()),
        "EMQ, calibrated": aggregative.EMQ(LogisticRegression(), calib="bcts", val_split=5),
        "ACC": aggregative.ACC(LogisticRegression()),
        "PACC": aggregative.PACC(LogisticRegression()),
        "KDEy-ML": aggregative.KDEyML(LogisticRegression()),
    }
    held_out = cross_val_predict(linear.model, linear.inputs, linear.labels, cv=5, method="predict_proba")
    fitted = {}
    for name, quantifier in makers.items():
        # `quantifier.fit` would train the classifier and make the same held-out predictions once for each of them.
        quantifier.classifier = linear.model
        quantifier.train_prevalence = np.bincount(linear.labels) / len(linear.labels)
        quantifier.aggregation_fit(held_out.argmax(axis=1) if name == "ACC" else held_out, linear.labels)
        fitted[name] = quantifier
    return fitted
