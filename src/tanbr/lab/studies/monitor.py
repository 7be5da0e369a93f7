"""How well the monitor knows the task mix, against counting votes and QuaPy; how often a prompt finds its adapter.

    python -m tanbr.lab.studies.monitor --quick                            # generated tasks, under a minute
    python -m tanbr.lab.studies.monitor --data GLUE_FOLDER --out docs/results/monitor/glue.json
    python -m tanbr.lab.studies.monitor --data GLUE_FOLDER --parts prompts --out docs/results/engines/routing.json

The history comes from train text, every slot from text held out of it (GLUE's dev, the generated tasks' test split).
Errors are L1 distances between mixes: of a slot against the mix it really held, of a forecast against the latent mix.
QuaPy (`pip install quapy`) is optional.
"""

import argparse
import itertools
import json
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from tanbr.lab.tasks import glue, tiny, traffic
from tanbr.monitor import Monitor
from tanbr.monitor.features import plain_text, read
from tanbr.serve.panel import Assignment
from tanbr.tasks.rows import Row
from tanbr.types import Decision, FloatArray, Text, to_jsonable

SIZES = (64, 256, 1024)  # requests of a slot
ALPHAS = (0.1, 0.3, 1.0)  # how even its mix is
INSTRUCTIONS = json.loads(Path(__file__).with_name("instructions.json").read_text(encoding="utf-8"))  # of GLUE's tasks


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
        name, texts = f"{self.name}, normalised", [plain_text(text) for text in self.texts]
        return replace(self, name=name, history=history, texts=texts)

    def past(self, per_task: int) -> tuple[list[Text], list[str]]:
        """Give the first texts of each task's history, and their tasks."""
        pairs = [(text, task) for task, pool in zip(self.tasks, self.history, strict=True) for text in pool[:per_task]]
        return [text for text, _ in pairs], [task for _, task in pairs]

    def taught(self, per_task: int) -> Monitor:
        """Build a monitor that has learned the history."""
        monitor = Monitor(self.tasks)
        monitor.learn(*self.past(per_task))
        return monitor

    def draw(self, counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw so many live texts of each task (V,): their places in `texts`."""
        pools = [np.flatnonzero(self.labels == task) for task in range(len(self.tasks))]
        return np.concatenate([rng.choice(pool, count) for pool, count in zip(pools, counts, strict=True)])


def load(folder: str | None, *, rows: int) -> Data:
    """Read GLUE from a folder, or generate the tiny tasks."""
    if folder:
        train, dev = glue.load(folder, split="train", limit=rows), glue.load(folder, split="dev")
    else:
        train = {task.name: tiny.generate(task.name, rows, seed=0) for task in tiny.TASKS}
        dev = {task.name: tiny.generate(task.name, rows, seed=0, split="test") for task in tiny.TASKS}
    texts = [row.text for of_task in dev.values() for row in of_task]
    labels = np.repeat(np.arange(len(dev)), [len(of_task) for of_task in dev.values()])
    history = [[row.text for row in of_task] for of_task in train.values()]
    return Data("GLUE" if folder else "tiny", tuple(train), history, texts, labels)


def recognition(data: Data, *, per_task: int) -> dict[str, Any]:
    """How often a request's task is recognised, what it is taken for, and what the monitor expects of itself."""
    monitor, V = data.taught(per_task), len(data.tasks)
    seen = monitor.snapshot().recognise(data.texts)
    table = np.zeros((V, V))
    np.add.at(table, (data.labels, seen.posteriors.argmax(axis=1)), 1)
    table /= table.sum(axis=1, keepdims=True)
    return {
        "accuracy, tasks alike": float(np.diag(table).mean()),
        "taken for novel": float(seen.novel.mean()),
        "cross-validated on the history": float(np.diag(monitor.confusion).mean()),
        "tasks": data.tasks,
        "confusion": table,  # (V, V) share of each task's texts that are read as each task
    }


def rivals(data: Data, per_task: int, drawn: Sequence[NDArray[np.int64]]) -> dict[str, list[FloatArray]]:
    """Estimate drawn slots' mixes by logistic regression on TF-IDF and surface features, and by QuaPy's quantifiers."""
    texts, tags = data.past(per_task)
    tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, lowercase=False).fit(map(_joined, texts))
    scaler = StandardScaler().fit(read(texts).surface)

    def features(texts: Sequence[Text]) -> Any:
        surface = csr_matrix(scaler.transform(read(texts).surface))
        return hstack([tfidf.transform(map(_joined, texts)), surface]).tocsr()

    inputs, labels = features(texts), np.array([data.tasks.index(tag) for tag in tags])
    model = LogisticRegression(C=10, max_iter=300).fit(inputs, labels)
    live = features(data.texts)
    votes = model.predict(live)
    found = {"argmax counted": [np.bincount(votes[at], minlength=len(data.tasks)) / len(at) for at in drawn]}
    try:
        from quapy.method import aggregative
    except ImportError:
        return found
    quantifiers = {
        "EMQ, calibrated": aggregative.EMQ(LogisticRegression(), calib="bcts", val_split=5),
        "KDEy-ML": aggregative.KDEyML(LogisticRegression()),
    }
    held_out = cross_val_predict(model, inputs, labels, cv=5, method="predict_proba")
    for name, quantifier in quantifiers.items():
        # `quantifier.fit` would train the classifier and make the same held-out predictions once for each of them
        quantifier.classifier = model
        quantifier.train_prevalence = np.bincount(labels) / len(labels)
        quantifier.aggregation_fit(held_out, labels)
        predicted = np.asarray(quantifier.classify(live))
        found[f"QuaPy {name}"] = [np.asarray(quantifier.aggregate(predicted[at])) for at in drawn]
    return found


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else " ||| ".join(text)


def mix(data: Data, *, per_task: int, repeats: int, compare: bool) -> dict[str, Any]:
    """Mean L1 error of a slot's mix: the monitor, its counted votes, and to `compare` the rivals on the same slots."""
    rng, V = np.random.default_rng(0), len(data.tasks)
    truth, drawn = [], []  # the mix that a slot holds (V,), and the places of its texts
    for size, alpha, _ in itertools.product(SIZES, ALPHAS, range(repeats)):
        counts = rng.multinomial(size, rng.dirichlet(np.full(V, alpha)))
        truth.append(counts / size)
        drawn.append(data.draw(counts, rng))
    monitor = data.taught(per_task)
    guesses: dict[str, list[FloatArray]] = defaultdict(list)
    for at in drawn:
        votes = monitor.observe([data.texts[i] for i in at]).argmax(axis=1)
        guesses["tanbr monitor"].append(monitor.close_slot().estimate)
        guesses["tanbr monitor's posteriors, argmax counted"].append(np.bincount(votes, minlength=V) / len(at))
    if compare:
        found = rivals(data, per_task, drawn)
        guesses |= {f"TF-IDF + surface + LR, {name}": mixes for name, mixes in found.items()}
    errors = {name: np.abs(np.array(found) - truth).sum(axis=1) for name, found in guesses.items()}
    return {
        name: {"mean": float(values.mean()), "standard_error": float(values.std() / np.sqrt(len(values)))}
        for name, values in errors.items()
    }


def forecast(data: Data, *, per_task: int, length: int, seeds: int) -> dict[str, Any]:
    """Mean L1 of the forecast against the next slot's latent mix, through steady, switching and drifting traffic."""
    taught = data.taught(per_task)
    table: dict[str, Any] = {}
    for kind, size in itertools.product(("fixed", "switching", "dirichlet"), SIZES):
        errors: dict[str, list[float]] = defaultdict(list)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            mixes = traffic.mixes(kind, tasks=len(data.tasks), slots=length, seed=seed, alpha=0.3, period=20)
            monitor, average = taught.fork(), None
            for now, coming in itertools.pairwise(mixes):
                monitor.observe([data.texts[i] for i in data.draw(rng.multinomial(size, now), rng)])
                closed = monitor.close_slot()
                average = closed.estimate if average is None else 0.7 * average + 0.3 * closed.estimate
                guesses = {"tanbr monitor": closed.forecast, "last slot": closed.estimate, "EMA .3": average}
                for name, guess in guesses.items():
                    errors[name].append(float(np.abs(guess - coming).sum()))
                covered = np.abs(closed.forecast - coming) <= 2 * closed.uncertainty
                errors["within 2 standard deviations"].append(float(covered.mean()))
        table[f"{kind}, {size}"] = {name: float(np.mean(values)) for name, values in errors.items()}
    return table


def worded(rows: Sequence[Row], instructions: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Put each row's text in one of its task's instructions."""
    texts = [(row.text,) if isinstance(row.text, str) else row.text for row in rows]
    drawn = rng.integers(len(instructions), size=len(texts))
    return [instructions[number].format(*text) for number, text in zip(drawn, texts, strict=True)]


def prompts(folder: str, *, history: int, requests: int) -> dict[str, Any]:
    """Share of each task's prompts that reach its own adapter, in a panel of one adapter a task.

    Prompts are GLUE's texts in `instructions.json`, five a task as FLAN has them, some of which MNLI and RTE, and MRPC
    and QQP, share. The history has train text in the first four; requests are dev text in these, or in the fifth.
    """
    rng, tasks, V = np.random.default_rng(0), tuple(INSTRUCTIONS), len(INSTRUCTIONS)

    def put(rows: Sequence[Row], chosen: slice) -> list[Text]:
        return list(worded(rows, INSTRUCTIONS[rows[0].task][chosen], rng))

    train, dev = glue.load(folder, split="train", limit=history), glue.load(folder, split="dev", limit=requests)
    monitor, past = Monitor(tasks), {task: put(train[task], slice(4)) for task in tasks}
    monitor.learn([one for task in tasks for one in past[task]], [task for task in tasks for _ in past[task]])
    assignment = Assignment(Decision(0, np.full(V, 1 / V), np.eye(V), estimates=np.eye(V)), monitor.snapshot())
    found: dict[str, Any] = {}
    for name, chosen in (("instructions of the history", slice(4)), ("instructions never read", slice(4, None))):
        shares = {}
        for place, task in enumerate(tasks):
            went = assignment.places(assignment.recogniser.recognise(put(dev[task], chosen)))
            shares[task] = round(float((went == place).mean()), 4)
        found[name] = {"all tasks alike": round(float(np.mean(list(shares.values()))), 4), **shares}
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with GLUE's TSV folders; without it, the generated tasks")
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    usual = ["recognition", "mix", "forecast"]
    parser.add_argument("--parts", nargs="+", choices=[*usual, "prompts"], default=usual, help="prompts are GLUE's")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if "prompts" in options.parts and not options.data:
        parser.error("prompts are made of GLUE's texts; name its folder with --data")
    few, many, repeats, length, seeds = (200, 200, 2, 42, 1) if options.quick else (500, 2000, 25, 162, 2)
    data = load(options.data, rows=many)
    both = (data,) if options.quick else (data, data.normalised())
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "recognition": lambda: {texts.name: recognition(texts, per_task=few) for texts in both},
        "mix": lambda: {
            f"{of.name}, {known} texts a task": mix(of, per_task=known, repeats=repeats, compare=known == few)
            for of, known in itertools.product(both, sorted({few, many}))
        },
        "forecast": lambda: forecast(data, per_task=few, length=length, seeds=seeds),
        "prompts": lambda: prompts(options.data, history=few, requests=1000),
    }
    command = "python -m tanbr.lab.studies.monitor" + " --data GLUE" * bool(options.data) + " --quick" * options.quick
    command += f" --parts {' '.join(options.parts)}" * (options.parts != usual)
    about = {"command": command, "python": platform.python_version(), "numpy": np.__version__}
    text = json.dumps(to_jsonable(about | {name: parts[name]() for name in options.parts}), indent=1)
    print(text)
    if options.out:
        write_atomically(options.out, text + "\n")


if __name__ == "__main__":
    main()
