"""How well strangers are noticed: a single request, and slots with some of them."""

import argparse
import inspect
import json
import platform
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from monitoring.data import Data, taught
from tanbr.monitor import Monitor
from tanbr.types import FloatArray, Text

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


def measure(data: Data, *, per_task: int, repeats: int, seed: int) -> dict[str, Any]:
    """How well strangers are told from the tasks' own text, and how slots with 30% of them alarm."""
    rng = np.random.default_rng(seed)
    texts, labels = data.everything()
    monitor = taught(data, per_task)

    def familiarity(judge: Monitor, requests: Sequence[Text]) -> FloatArray:
        return judge.snapshot().recognise(requests).familiarity

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
