"""A tiny random T5-MoE of four experts, and tasks whose labels are words that it writes."""

import json
from dataclasses import dataclass
from pathlib import Path

from serve.text_model import WORDS, write
from tanbr.lab.corpus import Corpus
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

TEXTS = [" ".join(WORDS[3 + (7 * i + j * j) % 60] for j in range(2 + i % 5)) for i in range(24)]


@dataclass(frozen=True)
class Written:
    """What the tests share."""

    moe: Moe
    corpus: Corpus


def written(folder: Path) -> Written:
    """Make the even merge's second word to the first text the one that ends an answer: then some answers are right."""
    write("t5_moe", folder)
    free = Task("free", ("accuracy",), ("w1 w2 w3 w4",))
    first, second = str(DenseModel(open_moe(folder), LabelSpace((free,))).answers(TEXTS[:1])[0]).split()[:2]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": WORDS.index(second)}))
    answer = f"{first} {second}"
    tasks = (Task("echo", ("accuracy",), (answer, "w1 w2")), Task("other", ("accuracy",), ("w3 w4", answer)))
    rows = {
        task.name: [Row(task.name, text, float(i % 2)) for i, text in enumerate(TEXTS[v::2])]
        for v, task in enumerate(tasks)
    }
    return Written(open_moe(folder), Corpus("written", tasks, held=rows, stream=rows))
