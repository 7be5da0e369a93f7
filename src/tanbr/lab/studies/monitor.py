"""How well the monitor knows the task mix: against counting votes, and against QuaPy.

    python -m tanbr.lab.studies.monitor --quick                            # generated tasks, under a minute
    python -m tanbr.lab.studies.monitor --data GLUE_FOLDER --out docs/results/monitor/glue.json

The history comes from train text, every slot from text held out of it (GLUE's dev, the generated tasks' test split).
Errors are L1 distances between mixes: of a slot against the mix it really held, of a forecast against the latent mix.
QuaPy (`pip install quapy`) is optional; without it the rivals are those written here.
"""

import argparse
import itertools
import json
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

from tanbr.files import write_atomically
from tanbr.lab.pictures import png, shares
from tanbr.lab.tasks import glue, tiny, traffic
from tanbr.monitor import Monitor
from tanbr.monitor.features import plain_text, read
from tanbr.types import FloatArray, Text, to_jsonable

SIZES = (64, 256, 1024)  # requests of a slot
ALPHAS = (0.1, 0.3, 1.0)  # how even its mix is


@dataclass(frozen=True, eq=False)
class Data:
    """Texts by task: a history to learn from, and live ones to draw slots from."""

    name: str
    tasks: tuple[str, ...]
    history: Sequence[Sequence[Text]]
    texts: Sequence[Text]  # all live ones
    labels: NDArray[np.int64]  # the index of their tasks

    def normalised(self) -> "Data":
        """Give the same without the writing habits of the sources."""
        history = [[plain_text(text) for text in pool] for pool in self.history]
        return Data(f"{self.name}, normalised", self.tasks, history, list(map(plain_text, self.texts)), self.labels)

    def cut(self, per_task: int) -> tuple[list[Text], list[str]]:
        """Give the first texts of each task's history, and their tasks."""
        pairs = [(text, task) for task, pool in zip(self.tasks, self.history, strict=True) for text in pool[:per_task]]
        return [text for text, _ in pairs], [task for _, task in pairs]

    def taught(self, per_task: int) -> Monitor:
        """Build a monitor that has learned the history."""
        monitor = Monitor(self.tasks)
        monitor.learn(*self.cut(per_task))
        return monitor

    def draw(self, counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw so many live texts of each task (V,): their places in `texts`."""
        pools = [np.flatnonzero(self.labels == task) for task in range(len(self.tasks))]
        return np.concatenate([rng.choice(pool, count) for pool, count in zip(pools, counts, strict=True)])

    def at(self, places: NDArray[np.int64]) -> list[Text]:
        """Give the texts at some places."""
        return [self.texts[place] for place in places]


def load(folder: str | None, *, history: int, live: int, seed: int) -> Data:
    """Read GLUE from a folder, or generate the tiny tasks."""
    if folder:
        train, dev = glue.load(folder, split="train", limit=history, seed=seed), glue.load(folder, split="dev")
    else:
        train = {task.name: tiny.generate(task.name, history, seed=seed) for task in tiny.TASKS}
        dev = {task.name: tiny.generate(task.name, live, seed=seed, split="test") for task in tiny.TASKS}
    texts = [row.text for rows in dev.values() for row in rows]
    labels = np.repeat(np.arange(len(dev)), [len(rows) for rows in dev.values()])
    read_before = [[row.text for row in rows] for rows in train.values()]
    return Data("GLUE" if folder else "tiny", tuple(train), read_before, texts, labels)


def recognition(data: Data, *, per_task: int) -> dict[str, Any]:
    """How often a request's task is recognised, what it is taken for, and what the monitor expects of itself."""
    monitor = data.taught(per_task)
    seen = monitor.snapshot().recognise(data.texts)
    read_as = seen.posteriors.argmax(axis=1)
    V = len(data.tasks)
    table = np.zeros((V, V))
    np.add.at(table, (data.labels, read_as), 1)
    table /= table.sum(axis=1, keepdims=True)
    wrong = table - np.diag(np.diag(table))
    largest = sorted(np.ndindex(V, V), key=lambda pair: -wrong[pair])[:5]
    return {
        "accuracy, tasks alike": float(np.diag(table).mean()),
        "accuracy, texts alike": float((read_as == data.labels).mean()),
        "taken for novel": float(seen.novel.mean()),
        "cross-validated on the history": float(np.diag(monitor.confusion).mean()),
        "largest confusions": {f"{data.tasks[v]} as {data.tasks[w]}": float(wrong[v, w]) for v, w in largest},
        "confusion": table,
    }


class Linear:
    """TF-IDF of word 1-2-grams and logistic regression, with or without the monitor's own surface features."""

    def __init__(self, data: Data, per_task: int, *, surface: bool) -> None:
        texts, tags = data.cut(per_task)
        self._tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, lowercase=False)
        self._tfidf.fit(map(joined, texts))
        self._scaler = StandardScaler().fit(read(texts).surface) if surface else None
        self.model = LogisticRegression(C=10, max_iter=300)
        self.inputs, self.labels = self.transform(texts), np.array([data.tasks.index(tag) for tag in tags])
        self.model.fit(self.inputs, self.labels)

    def transform(self, texts: Sequence[Text]) -> Any:
        """Turn texts into the model's inputs."""
        words = self._tfidf.transform(map(joined, texts))
        if self._scaler is None:
            return words
        return hstack([words, csr_matrix(self._scaler.transform(read(texts).surface))]).tocsr()

    def quantifiers(self) -> dict[str, Any]:
        """Fit QuaPy's quantifiers on top; none without QuaPy."""
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
        held_out = cross_val_predict(self.model, self.inputs, self.labels, cv=5, method="predict_proba")
        for name, quantifier in makers.items():
            # `quantifier.fit` would train the classifier and make the same held-out predictions once for each of them
            quantifier.classifier = self.model
            quantifier.train_prevalence = np.bincount(self.labels) / len(self.labels)
            quantifier.aggregation_fit(held_out.argmax(axis=1) if name == "ACC" else held_out, self.labels)
        return makers


def joined(text: Text) -> str:
    """Give a pair as one text."""
    return text if isinstance(text, str) else " ||| ".join(text)


def mix(data: Data, *, per_task: int, repeats: int, seed: int, rivals: bool) -> dict[str, Any]:
    """Mean L1 error of a slot's mix: the monitor, counted votes, and the rivals on the same slots."""
    rng, V = np.random.default_rng(seed), len(data.tasks)
    drawn = []  # the mix that a slot holds (V,), and the places of its texts
    for size, alpha, _ in itertools.product(SIZES, ALPHAS, range(repeats)):
        counts = rng.multinomial(size, rng.dirichlet(np.full(V, alpha)))
        drawn.append((counts / size, data.draw(counts, rng)))
    guesses: dict[str, list[FloatArray]] = defaultdict(list)
    monitor = data.taught(per_task)
    for _, places in drawn:
        votes = monitor.observe(data.at(places)).argmax(axis=1)
        guesses["tanbr monitor"].append(monitor.close_slot().estimate)
        guesses["tanbr monitor's posteriors, argmax counted"].append(np.bincount(votes, minlength=V) / len(votes))
    for kind in ("TF-IDF + LR", "TF-IDF + surface + LR") if rivals else ():
        linear = Linear(data, per_task, surface="surface" in kind)
        inputs = linear.transform(data.texts)
        voted = linear.model.predict(inputs)
        guesses[f"{kind}, argmax counted"] = [np.bincount(voted[at], minlength=V) / len(at) for _, at in drawn]
        for name, quantifier in linear.quantifiers().items():
            predicted = np.asarray(quantifier.classify(inputs))
            guesses[f"{kind}, QuaPy {name}"] = [np.asarray(quantifier.aggregate(predicted[at])) for _, at in drawn]
    truth = np.array([held for held, _ in drawn])
    errors = {name: np.abs(np.array(found) - truth).sum(axis=1) for name, found in guesses.items()}
    return {
        name: {"mean": float(values.mean()), "standard_error": float(values.std() / np.sqrt(len(values)))}
        for name, values in errors.items()
    }


def forecast(data: Data, *, per_task: int, length: int, seeds: int, picture: Path | None) -> dict[str, Any]:
    """Mean L1 of the forecast against the next slot's latent mix, through steady, switching and drifting traffic."""
    taught = data.taught(per_task)
    table: dict[str, Any] = {}
    for kind, size in itertools.product(("fixed", "switching", "dirichlet"), SIZES):
        errors: dict[str, list[float]] = defaultdict(list)
        covered = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            mixes = traffic.mixes(kind, tasks=len(data.tasks), slots=length, seed=seed, alpha=0.3, period=20)
            monitor, average, run = taught.fork(), None, []
            for now, coming in itertools.pairwise(mixes):
                monitor.observe(data.at(data.draw(rng.multinomial(size, now), rng)))
                closed = monitor.close_slot()
                average = closed.estimate if average is None else 0.7 * average + 0.3 * closed.estimate
                guesses = {"tanbr monitor": closed.forecast, "last slot": closed.estimate, "EMA .3": average}
                for name, guess in guesses.items():
                    errors[name].append(float(np.abs(guess - coming).sum()))
                covered.append(np.mean(np.abs(closed.forecast - coming) <= 2 * closed.uncertainty))
                run.append((now, closed.estimate, closed.forecast))
            if picture and (kind, size, seed) == ("switching", 256, 0):
                titles = ("True mix", "Estimate of the slot", "Forecast for the next slot")
                rows = [np.array(column)[:80] for column in zip(*run, strict=True)]
                png(shares(list(zip(titles, rows, strict=True)), data.tasks), picture)
        means = {name: float(np.mean(values)) for name, values in errors.items()}
        table[f"{kind}, {size}"] = {**means, "within 2 standard deviations": float(np.mean(covered))}
    return table


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with GLUE's TSV folders; without it, the generated tasks")
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument("--parts", nargs="+", default=["recognition", "mix", "forecast"], help="only these")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--picture", type=Path, help="draw the mix through its switches (PNG)")
    options = parser.parse_args(arguments)
    quick = options.quick
    data = load(options.data, history=200 if quick else 2000, live=200 if quick else 1500, seed=0)
    few, many, repeats = (200, 200, 2) if quick else (500, 2000, 25)
    both = (data,) if quick else (data, data.normalised())
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "recognition": lambda: {texts.name: recognition(texts, per_task=few) for texts in both},
        "mix": lambda: {
            f"{of.name}, {known} texts a task": mix(of, per_task=known, repeats=repeats, seed=0, rivals=known == few)
            for of, known in itertools.product(both, sorted({few, many}))
        },
        "forecast": lambda: forecast(
            data, per_task=few, length=42 if quick else 162, seeds=1 if quick else 2, picture=options.picture
        ),
    }
    command = "python -m tanbr.lab.studies.monitor" + " --data GLUE" * bool(options.data) + " --quick" * quick
    about = {"command": command, "python": platform.python_version(), "numpy": np.__version__}
    text = json.dumps(to_jsonable(about | {name: parts[name]() for name in options.parts}), indent=1)
    print(text)
    if options.out:
        write_atomically(options.out, text + "\n")


if __name__ == "__main__":
    main()
