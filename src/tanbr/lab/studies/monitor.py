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
from collections.abc import Callable, Sequence
from copy import deepcopy
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
Pools = tuple[tuple[Text, ...], ...]  # texts, task by task


@dataclass(frozen=True, eq=False)
class Data:
    """Texts per task: `history` to learn from, `live` to draw slots from."""

    name: str
    tasks: tuple[str, ...]
    history: Pools
    live: Pools

    def normalised(self) -> "Data":
        """Give the same without the writing habits of the sources."""
        history, live = (
            tuple(tuple(plain_text(text) for text in pool) for pool in pools) for pools in (self.history, self.live)
        )
        return Data(f"{self.name}, normalised", self.tasks, history, live)

    def cut(self, per_task: int) -> tuple[list[Text], list[str]]:
        """Give the first texts of each task's history, and their tasks."""
        pairs = [(text, task) for task, pool in zip(self.tasks, self.history, strict=True) for text in pool[:per_task]]
        return [text for text, _ in pairs], [task for _, task in pairs]

    def everything(self) -> tuple[list[Text], NDArray[np.int64]]:
        """Give all live texts, and the index of their tasks."""
        labels = np.repeat(np.arange(len(self.tasks)), [len(pool) for pool in self.live])
        return [text for pool in self.live for text in pool], labels

    def taught(self, per_task: int) -> Monitor:
        """Build a monitor that has learned the history."""
        monitor = Monitor(self.tasks)
        monitor.learn(*self.cut(per_task))
        return monitor

    def slots(self, *, sizes: Sequence[int], repeats: int, seed: int) -> list[tuple[FloatArray, NDArray[np.int64]]]:
        """Draw slots: the mix each holds (V,), and the places of its texts in `everything`."""
        rng = np.random.default_rng(seed)
        drawn = []
        for size in sizes:
            for alpha in ALPHAS:
                for _ in range(repeats):
                    counts = rng.multinomial(size, rng.dirichlet(np.full(len(self.tasks), alpha)))
                    drawn.append((counts / size, self.places(counts, rng)))
        return drawn

    def places(self, counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw so many live texts of each task (V,): their places in `everything`."""
        _, labels = self.everything()
        pools = [np.flatnonzero(labels == task) for task in range(len(self.tasks))]
        return np.concatenate([rng.choice(pool, count) for pool, count in zip(pools, counts, strict=True)])


def load(folder: str | None, *, history: int, live: int, seed: int) -> Data:
    """Read GLUE from a folder, or generate the tiny tasks."""
    if folder:
        splits = [glue.load(folder, split="train", limit=history, seed=seed), glue.load(folder, split="dev", seed=seed)]
    else:
        splits = [
            {task.name: tiny.generate(task.name, count, seed=seed, split=split) for task in tiny.TASKS}  # type: ignore[arg-type]
            for split, count in (("train", history), ("test", live))
        ]
    pools = [tuple(tuple(row.text for row in rows) for rows in split.values()) for split in splits]
    return Data("GLUE" if folder else "tiny", tuple(splits[0]), *pools)


def recognition(data: Data, *, per_task: int) -> dict[str, Any]:
    """How often a request's task is recognised, what it is taken for, and what the monitor expects of itself."""
    texts, labels = data.everything()
    monitor = data.taught(per_task)
    seen = monitor.snapshot().recognise(texts)
    V = len(data.tasks)
    table = np.zeros((V, V))
    np.add.at(table, (labels, seen.posteriors.argmax(axis=1)), 1)
    table /= table.sum(axis=1, keepdims=True)
    wrong = table - np.diag(np.diag(table))
    largest = sorted(np.ndindex(V, V), key=lambda pair: -wrong[pair])[:5]
    return {
        "accuracy, tasks alike": float(np.diag(table).mean()),
        "accuracy, texts alike": float((seen.posteriors.argmax(axis=1) == labels).mean()),
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
        self._tfidf.fit([joined(text) for text in texts])
        self._scaler = StandardScaler().fit(read(texts).surface) if surface else None
        self.model = LogisticRegression(C=10, max_iter=300)
        self.inputs, self.labels = self.transform(texts), np.array([data.tasks.index(tag) for tag in tags])
        self.model.fit(self.inputs, self.labels)

    def transform(self, texts: Sequence[Text]) -> Any:
        """Turn texts into the model's inputs."""
        words = self._tfidf.transform([joined(text) for text in texts])
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
    return text if isinstance(text, str) else f"{text[0]} ||| {text[1]}"


def mix(data: Data, *, per_task: int, repeats: int, seed: int, rivals: bool) -> dict[str, Any]:
    """Mean L1 error of a slot's mix: the monitor, counted votes, and the rivals on the same slots."""
    texts, _ = data.everything()
    drawn = data.slots(sizes=SIZES, repeats=repeats, seed=seed)
    errors: dict[str, list[float]] = {}

    def note(name: str, guess: FloatArray, truth: FloatArray) -> None:
        errors.setdefault(name, []).append(float(np.abs(guess - truth).sum()))

    monitor = data.taught(per_task)
    for truth, places in drawn:
        posteriors = monitor.observe([texts[place] for place in places])
        note("tanbr monitor", monitor.close_slot().estimate, truth)
        votes = np.bincount(posteriors.argmax(axis=1), minlength=len(data.tasks))
        note("tanbr monitor's posteriors, argmax counted", votes / votes.sum(), truth)
    for kind in ("TF-IDF + LR", "TF-IDF + surface + LR") if rivals else ():
        linear = Linear(data, per_task, surface="surface" in kind)
        inputs = linear.transform(texts)
        votes_of = linear.model.predict(inputs)
        for truth, places in drawn:
            note(f"{kind}, argmax counted", np.bincount(votes_of[places], minlength=len(truth)) / len(places), truth)
        for name, quantifier in linear.quantifiers().items():
            predictions = np.asarray(quantifier.classify(inputs))
            for truth, places in drawn:
                note(f"{kind}, QuaPy {name}", np.asarray(quantifier.aggregate(predictions[places])), truth)
    return {
        name: {"mean": float(np.mean(values)), "standard_error": float(np.std(values) / np.sqrt(len(values)))}
        for name, values in errors.items()
    }


def forecast(data: Data, *, per_task: int, length: int, seeds: int, picture: Path | None) -> dict[str, Any]:
    """Mean L1 of the forecast against the next slot's latent mix, through steady, switching and drifting traffic."""
    texts, _ = data.everything()
    expert = data.taught(per_task)
    table: dict[str, Any] = {}
    for kind in ("fixed", "switching", "dirichlet"):
        for size in SIZES:
            errors: dict[str, list[float]] = {}
            covered = []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                mixes = traffic.mixes(kind, tasks=len(data.tasks), slots=length, seed=seed, alpha=0.3, period=20)
                monitor, average, run = deepcopy(expert), np.zeros(0), []
                for now, coming in itertools.pairwise(mixes):
                    monitor.observe([texts[place] for place in data.places(rng.multinomial(size, now), rng)])
                    closed = monitor.close_slot()
                    average = 0.7 * average + 0.3 * closed.estimate if len(average) else closed.estimate
                    guesses = {"tanbr monitor": closed.forecast, "last slot": closed.estimate, "EMA .3": average}
                    for name, guess in guesses.items():
                        errors.setdefault(name, []).append(float(np.abs(guess - coming).sum()))
                    covered.append(np.mean(np.abs(closed.forecast - coming) <= 2 * closed.uncertainty))
                    run.append((now, closed.estimate, closed.forecast))
                if picture and kind == "switching" and size == 256 and seed == 0:
                    rows = [np.array(column)[:80] for column in zip(*run, strict=True)]
                    titles = ("True mix", "Estimate of the slot", "Forecast for the next slot")
                    png(shares(list(zip(titles, rows, strict=True)), data.tasks), picture)
            means = {name: float(np.mean(values)) for name, values in errors.items()}
            table[f"{kind}, {size}"] = {**means, "within 2 standard deviations": float(np.mean(covered))}
    return table


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with GLUE's TSV folders; without it, the generated tasks")
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", help="only these; the others in --out stay")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--picture", type=Path, help="draw the mix through its switches (PNG)")
    options = parser.parse_args(arguments)
    quick, seed = options.quick, options.seed
    data = load(options.data, history=200 if quick else 2000, live=200 if quick else 1500, seed=seed)
    few, many, repeats = (200, 200, 2) if quick else (500, 2000, 25)
    both = (data,) if quick else (data, data.normalised())
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "recognition": lambda: {texts.name: recognition(texts, per_task=few) for texts in both},
        "mix": lambda: {
            f"{texts.name}, {known} texts a task": mix(
                texts, per_task=known, repeats=repeats, seed=seed, rivals=known == few
            )
            for texts in both
            for known in sorted({few, many})
        },
        "forecast": lambda: forecast(
            data, per_task=few, length=42 if quick else 162, seeds=1 if quick else 2, picture=options.picture
        ),
    }
    results = {name: parts[name]() for name in options.parts or parts}
    print(json.dumps(to_jsonable(results), indent=1, ensure_ascii=False))
    if options.out:
        before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
        command = "python -m tanbr.lab.studies.monitor" + " --data GLUE" * bool(options.data) + " --quick" * quick
        about = {"command": command, "seed": seed, "python": platform.python_version(), "numpy": np.__version__}
        write_atomically(options.out, json.dumps(to_jsonable({**before, **about, **results}), indent=1) + "\n")


if __name__ == "__main__":
    main()
