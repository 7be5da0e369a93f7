"""How well and how cheaply the monitor knows the task mix: against counting votes, and against QuaPy.

    python benchmarks/monitor.py --quick                                   # generated tasks, under a minute
    python benchmarks/monitor.py --data GLUE_FOLDER --out docs/results/monitor/glue.json --plots docs/results/monitor

The history comes from train text, every slot from text held out of it (GLUE's dev, the generated tasks' test split).
Errors are L1 distances between mixes: of a slot against the mix it really held, of a forecast against the latent mix.
QuaPy (`pip install quapy`) is optional; without it the rivals are those written here.
"""

import argparse
import inspect
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

from tanbr.monitor import Monitor
from tanbr.monitor.features import read
from tanbr.tasks import glue, tiny, traffic
from tanbr.types import FloatArray, Text, to_jsonable

PARTS = ("mix", "forecast", "unknown", "clusters", "feedback", "cost")
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "quapy")
SIZES = (64, 256, 1024)
ALPHAS = (0.1, 0.3, 1.0)
KINDS = ("TF-IDF + LR", "TF-IDF + surface + LR")  # the classifiers below the rivals
GERMAN = (
    "Der Zug nach Hamburg hat heute wieder eine halbe Stunde Verspätung.",
    "Meine Großmutter backt jeden Sonntag einen Kuchen mit Äpfeln aus dem Garten.",
    "Wir haben gestern lange über den neuen Mietvertrag gesprochen.",
    "Kannst du mir bitte sagen, wo der nächste Bahnhof ist?",
    "Das Wetter soll am Wochenende endlich besser werden.",
    "Die Kinder spielen im Hof, obwohl es schon dunkel wird.",
    "Er wollte den Brief noch vor dem Abendessen zur Post bringen.",
    "Im Winter fahren viele Leute zum Skifahren in die Berge.",
)
FRENCH = (
    "Le train pour Lyon partira avec vingt minutes de retard ce soir.",
    "Ma voisine achète toujours son pain à la boulangerie du coin.",
    "Nous avons longtemps parlé des vacances que nous ferons cet été.",
    "Pouvez-vous me dire où se trouve la gare la plus proche ?",
    "Il fait enfin beau, les enfants jouent dans le jardin.",
    "Elle a oublié ses clés sur la table de la cuisine.",
    "Les ouvriers ont réparé la route pendant toute la nuit.",
    "Je voudrais réserver une table pour quatre personnes demain.",
)


@dataclass(frozen=True, eq=False)
class Data:
    """Texts per task: `history` to learn from, `live` to draw slots from."""

    name: str
    tasks: tuple[str, ...]
    history: tuple[tuple[Text, ...], ...]
    live: tuple[tuple[Text, ...], ...]

    def normalised(self) -> "Data":
        """Give the same without the writing habits of the sources."""

        def clean(pools: tuple[tuple[Text, ...], ...]) -> tuple[tuple[Text, ...], ...]:
            return tuple(tuple(normalise(text) for text in pool) for pool in pools)

        return Data(f"{self.name}, normalised", self.tasks, clean(self.history), clean(self.live))

    def cut(self, per_task: int) -> tuple[list[Text], list[str]]:
        """Give the first texts of each task's history, and their tasks."""
        pairs = [(text, task) for task, pool in zip(self.tasks, self.history, strict=True) for text in pool[:per_task]]
        return [text for text, _ in pairs], [task for _, task in pairs]

    def everything(self) -> tuple[list[Text], NDArray[np.int64]]:
        """Give all live texts, and the index of their tasks."""
        labels = np.repeat(np.arange(len(self.tasks)), [len(pool) for pool in self.live])
        return [text for pool in self.live for text in pool], labels


def normalise(text: Text) -> Text:
    """Keep letters and digits in lower case; contractions closed up, every mark and the spacing gone."""
    if not isinstance(text, str):
        return (str(normalise(text[0])), str(normalise(text[1])))
    closed = re.sub(r"\s*n\s?'\s?t\b", "nt", text.lower())
    closed = re.sub(r"\s*'\s*(?=(?:s|re|ve|ll|d|m)\b)", "", closed)
    return " ".join(re.findall(r"\w+", closed.replace("'", "")))


def load(folder: str | None, *, history: int, live: int, seed: int) -> Data:
    """Read GLUE from a folder, or generate the tiny tasks."""
    if folder:
        train = glue.load(folder, split="train", limit=history, seed=seed)
        dev = glue.load(folder, split="dev", seed=seed)
        pools = [tuple(tuple(row.text for row in rows) for rows in split.values()) for split in (train, dev)]
        return Data("GLUE", tuple(train), *pools)
    names = tuple(task.name for task in tiny.TASKS)
    train_rows = [tiny.generate(name, history, seed=seed, split="train") for name in names]
    test_rows = [tiny.generate(name, live, seed=seed, split="test") for name in names]
    pools = [tuple(tuple(row.text for row in rows) for rows in split) for split in (train_rows, test_rows)]
    return Data("tiny", names, *pools)


# --- the rivals ----------------------------------------------------------------------------------------------------


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


# --- the measurements ----------------------------------------------------------------------------------------------


def slots(
    data: Data, *, sizes: Sequence[int], repeats: int, seed: int
) -> list[tuple[int, float, FloatArray, NDArray[np.int64]]]:
    """Draw slots: size, alpha, the mix it holds (V,), and the places of its texts in `data.everything()`."""
    rng = np.random.default_rng(seed)
    _, labels = data.everything()
    pools = [np.flatnonzero(labels == task) for task in range(len(data.tasks))]
    drawn = []
    for size in sizes:
        for alpha in ALPHAS:
            for _ in range(repeats):
                counts = rng.multinomial(size, rng.dirichlet(np.full(len(pools), alpha)))
                places = np.concatenate([rng.choice(pool, count) for pool, count in zip(pools, counts, strict=True)])
                drawn.append((size, alpha, counts / size, places))
    return drawn


def taught(data: Data, per_task: int) -> Monitor:
    """Build a monitor that has learned the history."""
    monitor = Monitor(data.tasks)
    monitor.learn(*data.cut(per_task))
    return monitor


def measure_mix(data: Data, *, per_task: int, repeats: int, seed: int, rivals: bool) -> dict[str, Any]:
    """Mean L1 error of a slot's mix, by method."""
    texts, _ = data.everything()
    drawn = slots(data, sizes=SIZES, repeats=repeats, seed=seed)
    errors: dict[str, list[float]] = {}

    def note(name: str, guess: FloatArray, truth: FloatArray) -> None:
        errors.setdefault(name, []).append(float(np.abs(guess - truth).sum()))

    monitor = taught(data, per_task)
    for _, _, truth, places in drawn:
        posteriors = monitor.observe([texts[place] for place in places])
        note("tanbr monitor", monitor.close_slot().estimate, truth)
        votes = np.bincount(posteriors.argmax(axis=1), minlength=len(data.tasks))
        note("tanbr monitor's posteriors, argmax counted", votes / votes.sum(), truth)
    for kind in KINDS if rivals else ():
        linear, quantifiers = rivals_of(data, per_task, kind)
        inputs = linear.transform(texts)
        votes_of = linear.model.predict(inputs)
        for _, _, truth, places in drawn:
            note(f"{kind}, argmax counted", np.bincount(votes_of[places], minlength=len(truth)) / len(places), truth)
        for name, quantifier in quantifiers.items():
            predictions = np.asarray(quantifier.classify(inputs))
            for _, _, truth, places in drawn:
                note(f"{kind}, QuaPy {name}", np.asarray(quantifier.aggregate(predictions[places])), truth)
    by_size = np.array([size for size, *_ in drawn])
    return {
        name: {
            "mean": float(np.mean(values)),
            "standard_error": float(np.std(values) / np.sqrt(len(values))),
            **{str(size): float(np.mean(np.array(values)[by_size == size])) for size in SIZES},
        }
        for name, values in errors.items()
    }


def ema(gain: float) -> Callable[[FloatArray | None, FloatArray], FloatArray]:
    """Give a plain moving average."""
    return lambda old, new: new if old is None else (1 - gain) * old + gain * new


class EmaWithReset:
    """A moving average of gain .3 that starts afresh when the mix jumps by more than multinomial noise explains."""

    def __init__(self) -> None:
        self._mix: FloatArray | None = None
        self._weight = 0.0

    def __call__(self, new: FloatArray, requests: int) -> FloatArray:
        """Take in the estimate of a slot; the forecast."""
        if self._mix is not None:
            middle = (self._mix + new) / 2
            chance = np.sqrt(2 * middle * (1 - middle) * (1 / requests + 1 / self._weight) / np.pi).sum()
            if np.abs(new - self._mix).sum() <= 2.5 * chance + 0.1:
                self._mix = 0.7 * self._mix + 0.3 * new
                self._weight = min(0.7 * self._weight + requests, requests * 1.7 / 0.3)
                return self._mix
        self._mix, self._weight = new, float(requests)
        return new


def measure_forecast(data: Data, *, per_task: int, length: int, seeds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean L1 of the forecast against the next slot's latent mix; how switches are followed; one run for the plot."""
    texts, labels = data.everything()
    pools = [np.flatnonzero(labels == task) for task in range(len(data.tasks))]
    rivals = {"last slot": ema(1.0), "EMA .3": ema(0.3)}
    expert = taught(data, per_task)
    table: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for kind in ("fixed", "switching", "dirichlet"):
        for size in SIZES:
            errors: dict[str, list[float]] = {}
            caught, switches, moves, covered = 0, 0, [], []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                mixes = traffic.mixes(kind, tasks=len(pools), slots=length, seed=seed, alpha=0.3, period=20)
                monitor = _fresh(expert)
                guesses: dict[str, FloatArray] = {}
                with_reset = EmaWithReset()
                run = []
                for slot, mix in enumerate(mixes):
                    counts = rng.multinomial(size, mix)
                    places = np.concatenate([rng.choice(pool, n) for pool, n in zip(pools, counts, strict=True)])
                    monitor.observe([texts[place] for place in places])
                    closed = monitor.close_slot()
                    before = guesses.get("tanbr monitor")
                    guesses["tanbr monitor"] = closed.forecast
                    for name, rival in rivals.items():
                        guesses[name] = rival(guesses.get(name), closed.estimate)
                    guesses["EMA .3 with a reset"] = with_reset(closed.estimate, size)
                    if before is not None and kind == "fixed":
                        moves.append(float(np.abs(closed.forecast - before).sum()))
                    run.append((closed.estimate, closed.forecast))
                    if slot + 1 < length:
                        for name, guess in guesses.items():
                            errors.setdefault(name, []).append(float(np.abs(guess - mixes[slot + 1]).sum()))
                        covered.append(np.mean(np.abs(closed.forecast - mixes[slot + 1]) <= 2 * closed.uncertainty))
                for slot in (np.flatnonzero(np.abs(np.diff(mixes, axis=0)).sum(axis=1) > 0.3) + 1).tolist():
                    if kind == "switching" and slot + 1 < length:  # known after the first or the second slot
                        switches += 1
                        jump = np.abs(mixes[slot] - mixes[slot - 1]).sum()
                        caught += any(np.abs(run[s][1] - mixes[slot]).sum() < 0.5 * jump for s in (slot, slot + 1))
                if kind == "switching" and size == 256 and seed == 0:
                    rows = {"mix": mixes, "estimate": [e for e, _ in run], "forecast": [f for _, f in run]}
                    shown = {name: np.round(np.asarray(values)[:80], 3) for name, values in rows.items()}
            table[f"{kind}, {size}"] = {
                **{name: float(np.mean(values)) for name, values in errors.items()},
                "within 2 standard deviations": float(np.mean(covered)),
                **({"switches": switches, "followed within two slots": caught} if switches else {}),
                **({"forecast moves per slot": float(np.mean(moves))} if moves else {}),
            }
    return table, shown


def _fresh(monitor: Monitor) -> Monitor:
    """Give a monitor that knows the same and has seen no slot."""
    fresh = Monitor(monitor.tasks, monitor.method, config=monitor.config)
    fresh._recogniser = monitor._recogniser
    return fresh


def strangers(seed: int) -> dict[str, list[Text]]:
    """Give texts unlike any task: source code (Python's own library), and other languages."""
    rng = np.random.default_rng(seed)
    lines = [
        line for module in (argparse, inspect, json, platform, re) for line in inspect.getsource(module).split("\n")
    ]
    lines = [line for line in lines if len(line.strip()) > 20 and not line.strip().startswith(("#", '"'))]
    code: list[Text] = ["\n".join(lines[start : start + 3]) for start in rng.integers(0, len(lines) - 3, 400)]
    foreign = [
        [str(part) for part in rng.choice(pool, 2, replace=False)] for pool in (GERMAN, FRENCH) for _ in range(200)
    ]
    return {"source code": code, "other languages": [(one, two) for one, two in foreign]}


def measure_unknown(data: Data, *, per_task: int, repeats: int, seed: int) -> dict[str, Any]:
    """How well strangers are told from the tasks' own text, and how slots with 30% of them alarm."""
    rng = np.random.default_rng(seed)
    texts, labels = data.everything()
    monitor = taught(data, per_task)

    def familiarity(judge: Monitor, requests: Sequence[Text]) -> FloatArray:
        return judge._recogniser.familiarity(read(requests))

    def alarms(judge: Monitor, familiar: list[Text], odd: list[Text], share: float) -> tuple[float, float]:
        heard, shares = 0, []
        for _ in range(repeats):
            count = round(64 * share)
            own = [familiar[place] for place in rng.integers(len(familiar), size=64 - count)]
            judge.observe(own + [odd[place] for place in rng.integers(len(odd), size=count)])
            closed = judge.close_slot()
            heard += closed.alarm
            shares.append(closed.unknown)
        return heard / repeats, float(np.mean(shares))

    own = [texts[place] for place in rng.choice(len(texts), min(len(texts), 2000), replace=False)]
    base = familiarity(monitor, own)
    false, _ = alarms(monitor, own, own, 0.0)
    result: dict[str, Any] = {"false alarms": false}
    for name, odd in strangers(seed).items():
        scores = familiarity(monitor, odd)
        auroc = roc_auc_score(np.r_[np.zeros(len(base)), np.ones(len(scores))], -np.r_[base, scores])
        rate, share = alarms(monitor, own, odd, 0.3)
        result[name] = {"AUROC": float(auroc), "alarms at 30%": rate, "unknown share at 30%": share}
    ninth = []
    for left_out in data.tasks[:: 3 if repeats < 20 else 1]:
        kept = [index for index, task in enumerate(data.tasks) if task != left_out]
        tasks = tuple(data.tasks[index] for index in kept)
        history, live = (tuple(pools[index] for index in kept) for pools in (data.history, data.live))
        judge = taught(Data(data.name, tasks, history, live), per_task)
        inside = [text for text, label in zip(texts, labels, strict=True) if data.tasks[label] != left_out][:2000]
        outside = list(data.live[data.tasks.index(left_out)][:500])
        one, two = familiarity(judge, inside), familiarity(judge, outside)
        ninth.append(float(roc_auc_score(np.r_[np.zeros(len(one)), np.ones(len(two))], -np.r_[one, two])))
    result["a task of the eight, left out"] = {"AUROC": [min(ninth), float(np.median(ninth)), max(ninth)]}
    return result


def measure_clusters(data: Data, *, repeats: int, seed: int) -> dict[str, float]:
    """Purity of the latent tasks, and L1 of the mix once each is matched to a task; no label was used."""
    texts, labels = data.everything()
    rng = np.random.default_rng(seed)
    even = np.concatenate([rng.choice(np.flatnonzero(labels == task), 300) for task in range(len(data.tasks))])
    monitor = Monitor([f"latent {index}" for index in range(len(data.tasks))], "clusters")
    for part in np.array_split(rng.permutation(even), 4):
        monitor.observe([texts[place] for place in part])
        monitor.close_slot()
    groups = monitor.observe([texts[place] for place in even]).argmax(axis=1)
    monitor.close_slot()
    table = np.zeros((len(data.tasks), len(data.tasks)))
    np.add.at(table, (groups, labels[even]), 1)
    rows, columns = linear_sum_assignment(-table)
    errors = []
    for _, _, truth, places in slots(data, sizes=SIZES, repeats=repeats, seed=seed):
        monitor.observe([texts[place] for place in places])
        matched = np.zeros(len(truth))
        matched[columns] = monitor.close_slot().estimate[rows]
        errors.append(float(np.abs(matched - truth).sum()))
    return {"purity": float(table.max(axis=1).sum() / table.sum()), "L1 after matching": float(np.mean(errors))}


def measure_feedback(data: Data, *, seed: int) -> dict[str, float]:
    """Mean L1 of slots as late feedback with true tasks comes in, starting from 20 texts a task."""
    texts, _ = data.everything()
    drawn = slots(data, sizes=(256,), repeats=8, seed=seed)
    monitor = taught(data, 20)
    result = {}
    for known in (20, 40, 80, 160):
        history, tags = data.cut(known)
        if known > 20:
            before, before_tags = data.cut(known // 2)
            late = [
                (t, g)
                for t, g in zip(history, tags, strict=True)
                if (t, g) not in set(zip(before, before_tags, strict=True))
            ]
            monitor.learn([text for text, _ in late], [tag for _, tag in late])
            monitor.close_slot()
        errors = []
        for _, _, truth, places in drawn:
            monitor.observe([texts[place] for place in places])
            errors.append(float(np.abs(monitor.close_slot().estimate - truth).sum()))
        result[str(known)] = float(np.mean(errors))
    return result


def cpu(action: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median and spread (half the range between quartiles) of the CPU seconds an action takes."""
    action()
    took = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        took.append(time.process_time() - start)
    low, middle, high = np.quantile(took, [0.25, 0.5, 0.75])
    return float(middle), float(high - low) / 2


def measure_cost(data: Data, *, per_task: int, repeats: int, seed: int) -> dict[str, Any]:
    """CPU microseconds per request from strings to ψ, of the monitor, the rivals and a model of MiniLM's size."""
    rng = np.random.default_rng(seed)
    texts, _ = data.everything()
    requests = [texts[place] for place in rng.integers(len(texts), size=1024)]
    monitor = taught(data, per_task)
    result: dict[str, Any] = {}

    def note(name: str, action: Callable[[], Any], count: int) -> None:
        middle, spread = cpu(action, repeats)
        result[name] = {"microseconds a request": 1e6 * middle / count, "spread": 1e6 * spread / count}

    def whole(batch: int) -> None:
        for start in range(0, len(requests), batch):
            monitor.observe(requests[start : start + batch])
        monitor.close_slot()

    def predict(linear: Linear, method: Any) -> None:
        method.predict(linear.transform(requests))

    for batch in (1024, 32, 1):
        note(f"tanbr monitor, batches of {batch}", partial(whole, batch), len(requests))
    for kind in KINDS:
        linear, quantifiers = rivals_of(data, per_task, kind)
        methods = {"argmax counted": linear.model, **{f"QuaPy {name}": way for name, way in quantifiers.items()}}
        for name, method in methods.items():
            note(f"{kind}, {name}", partial(predict, linear, method), len(requests))
    note("a forward pass of MiniLM's size, batches of 32", minilm(requests[:128]), 128)
    ours = result["tanbr monitor, batches of 1024"]["microseconds a request"]
    for row in result.values():
        row["times the monitor's"] = row["microseconds a request"] / ours
    arrays = monitor._arrays()
    result["state"] = {
        "requests per second and core": 1e6 / ours,
        "bytes in memory": int(sum(array.nbytes for array in arrays.values())),
        "of which sketches": int(sum(array.nbytes for name, array in arrays.items() if ".sketch." in name)),
    }
    return result


def minilm(requests: Sequence[Text]) -> Callable[[], Any]:
    """Give a forward pass over the requests: BERT with MiniLM's shape and random weights, about 1.3 tokens a word."""
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = BertModel(shape).eval()
    lengths = [min(128, 3 + round(1.3 * len(re.findall(r"\w+|[^\w\s]", joined(text))))) for text in requests]
    batches = []
    for start in range(0, len(requests), 32):
        sizes = lengths[start : start + 32]
        tokens = torch.randint(1000, 30000, (len(sizes), max(sizes)))
        mask = torch.tensor([[position < size for position in range(max(sizes))] for size in sizes]).long()
        batches.append((tokens, mask))

    def forward() -> None:
        with torch.inference_mode():
            for tokens, mask in batches:
                model(input_ids=tokens, attention_mask=mask)

    return forward


# --- what is shown -------------------------------------------------------------------------------------------------


def show(title: str, table: dict[str, Any]) -> None:
    """Print a table of numbers."""
    print(f"\n{title}")
    for name, row in table.items():
        cells = row.items() if isinstance(row, dict) else [("", row)]
        print(f"  {name:52s}", "  ".join(f"{key} {_short(value)}" for key, value in cells))


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(_short(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def draw(results: dict[str, Any], tasks: Sequence[str], folder: Path) -> None:
    """Draw the mix through its switches, and the errors of the methods."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    colours = plt.get_cmap("tab10").colors[: len(tasks)]
    figure, axes = plt.subplots(3, 1, figsize=(9, 7), sharex=True, constrained_layout=True)
    run = results["run"]
    rows = {
        "true mix": run["mix"],
        "estimate of the slot": run["estimate"],
        "forecast made before the slot": run["forecast"],
    }
    for axis, (title, values) in zip(axes, rows.items(), strict=True):
        values = np.asarray(values)
        if title.startswith("forecast"):
            values = np.vstack([np.full((1, len(tasks)), 1 / len(tasks)), values[:-1]])
        axis.stackplot(np.arange(len(values)) + 0.5, values.T, colors=colours, labels=tasks, step="mid")
        axis.set(title=title, ylim=(0, 1), ylabel="share")
        axis.margins(x=0)
    axes[-1].set_xlabel("slot (256 requests each, none of them tagged)")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(folder / "switch.png", dpi=130)
    plt.close(figure)

    figure, axis = plt.subplots(figsize=(9, 5.5), constrained_layout=True)
    tables = {
        key: table for key, table in results["mix"].items() if any("argmax" in name and "LR" in name for name in table)
    }
    names = sorted(next(iter(tables.values())), key=lambda name: -next(iter(tables.values()))[name]["mean"])
    for offset, (key, table) in zip((0.2, -0.2), tables.items(), strict=False):
        present = [name for name in names if name in table]
        places = [names.index(name) + offset for name in present]
        colour = "tab:blue" if offset > 0 else "tab:orange"
        spreads = [2 * table[name]["standard_error"] for name in present]
        axis.barh(places, [table[name]["mean"] for name in present], 0.38, xerr=spreads, color=colour, label=key)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("mean L1 error of a slot's mix (bars: two standard errors); less is better")
    axis.legend(frameon=False)
    figure.savefig(folder / "error.png", dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder with GLUE's TSV folders; without it, the generated tasks")
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--plots", type=Path, help="draw into this folder")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="measure only these; the rest of --out stays"
    )
    options = parser.parse_args()
    quick, seed = options.quick, options.seed
    per_task, many = (200, 200) if quick else (500, 2000)
    repeats = 2 if quick else 25
    data = load(options.data, history=many, live=200 if quick else 1500, seed=seed)
    clean = data.normalised()
    results: dict[str, Any] = {}

    def keep(part: str, title: str, measured: dict[str, Any]) -> None:
        results[part] = {**results.get(part, {}), title: measured}
        show(title, measured)

    if "mix" in options.parts:
        for texts in (data,) if quick else (data, clean):
            for known in sorted({per_task, many}):
                title = f"{texts.name}, {known} texts a task"
                measured = measure_mix(texts, per_task=known, repeats=repeats, seed=seed, rivals=known == per_task)
                keep("mix", title, measured)
    if "forecast" in options.parts:
        table, run = measure_forecast(data, per_task=per_task, length=42 if quick else 162, seeds=1 if quick else 2)
        keep("forecast", "L1 of the forecast", table)
        results["run"] = run
    if "unknown" in options.parts:
        odd = measure_unknown(data, per_task=per_task, repeats=5 if quick else 100, seed=seed)
        keep("unknown", "slots of 64", odd)
    if "clusters" in options.parts:
        for texts in (data, clean):
            keep("clusters", f"{texts.name}, no labels", measure_clusters(texts, repeats=2 if quick else 10, seed=seed))
    if "feedback" in options.parts:
        keep("feedback", "L1 by texts known a task", measure_feedback(data, seed=seed))
    if "cost" in options.parts:
        keep("cost", "CPU", measure_cost(data, per_task=per_task, repeats=3 if quick else 9, seed=seed))
    if options.out:
        write(options, results, repeats)
    if options.plots:
        draw(json.loads(options.out.read_text()) if options.out else results, data.tasks, options.plots)


def write(options: argparse.Namespace, results: dict[str, Any], repeats: int) -> None:
    """Write the figures, beside those of other parts that were measured before."""
    before = json.loads(options.out.read_text()) if options.out.exists() and options.parts != PARTS else {}
    versions = {name: sys.modules[name].__version__ for name in PACKAGES if name in sys.modules}
    command = "python benchmarks/monitor.py" + " --data GLUE" * bool(options.data) + " --quick" * options.quick
    about = {"command": command, "seed": options.seed, "slots per size and alpha": repeats}
    about["versions"] = {**before.get("versions", {}), "python": platform.python_version(), **versions}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_jsonable({**before, **about, **results}), indent=1)
    options.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
