"""What a new user has: fine-tuned copies of one model, made with plain transformers, and rows of their tasks.

    python -m tanbr.lab.studies.first_hour minilm/ glue/ trial/                # copies with labels of their own
    python -m tanbr.lab.studies.first_hour minilm/ glue/ trial/ --shared       # copies that all answer yes or no
    python -m tanbr.lab.studies.first_hour flan-t5-small/ glue/ trial/ --lora  # LoRA adapters that write their labels
    tanbr serve trial/experts.toml --history trial/rows --slot-requests 64
    tanbr traffic --data trial/rows --slots 24

Rows are of GLUE: to train on, for the history (`rows/NAME.jsonl`), and for requests (`rows/NAME.dev.jsonl`); no row is
in two of them. `dense/` is the sceptic's rival: one model trained on the rows of all tasks for all steps together.
"""

import argparse
import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

from tanbr.tasks.text_to_text import prompt

TRAIN, PAST, REQUESTS = 8_000, 400, 1_500  # rows of a task
LONGEST = 48  # tokens while training
Example = tuple[str, str | None, str]  # text, second text, label


class Task(NamedTuple):
    """Where a task's texts and labels are in GLUE's files, and what its labels are called."""

    name: str
    folder: str
    texts: tuple[str, ...]  # columns
    label: str  # column
    words: dict[str, str]  # GLUE's label → ours


SST2 = ("SST-2", ("sentence",), "label")
QQP = ("QQP", ("question1", "question2"), "is_duplicate")
QNLI = ("QNLI", ("question", "sentence"), "label")
GENRES = {name: name for name in ("fiction", "government", "slate", "telephone", "travel")}
OWN_LABELS = (
    Task("sentiment", *SST2, {"0": "negative", "1": "positive"}),
    Task("duplicates", *QQP, {"0": "different", "1": "duplicate"}),
    Task("genre", "MNLI", ("sentence1",), "genre", GENRES),
)
ONE_LABEL_SET = (
    Task("is-positive", *SST2, {"0": "no", "1": "yes"}),
    Task("is-duplicate", *QQP, {"0": "no", "1": "yes"}),
    Task("is-answered", *QNLI, {"not_entailment": "no", "entailment": "yes"}),
)


def examples(glue: Path, task: Task) -> tuple[list[Example], list[Example], list[Example]]:
    """Read a task's rows, shuffled: to train on, past, requests. Those are dev's; MNLI's dev rows name no genre."""
    parts = []
    for split in ("train", "dev"):
        with (glue / task.folder / f"{split}.tsv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        found = []
        for row in rows:
            if None not in row.values() and row[task.label] in task.words:
                first, *second = (row[column] for column in task.texts)
                text = first.strip() if task.folder == "SST-2" else first  # which ends every sentence in a space
                found.append((text, second[0] if second else None, task.words[row[task.label]]))
        parts.append(list(dict.fromkeys(found)))
    train, dev = parts
    rng = random.Random(task.name)  # noqa: S311
    rng.shuffle(train)
    rng.shuffle(dev)
    return train[:TRAIN], train[TRAIN : TRAIN + PAST], (dev or train[TRAIN + PAST :])[:REQUESTS]


def write_rows(out: Path, name: str, past: Sequence[Example], requests: Sequence[Example]) -> None:
    """Write a task's past rows, and those that only requests are made of."""
    for some, ending in ((past, ".jsonl"), (requests, ".dev.jsonl")):
        lines = [{"text": a, **({} if b is None else {"text2": b}), "label": label} for a, b, label in some]
        (out / f"{name}{ending}").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def batches(tasks: Sequence[Sequence[Example]], steps: int, batch: int) -> Iterator[list[Example]]:
    """Draw a batch of one task at a time."""
    rng = random.Random(0)  # noqa: S311
    for step in range(steps):
        yield rng.sample(tasks[step % len(tasks)], batch)


def encoded(tokenizer: Any, some: Sequence[Example]) -> Any:
    """Encode texts, or pairs of them."""
    seconds = None if some[0][1] is None else [second or "" for _, second, _ in some]
    return tokenizer(
        [text for text, _, _ in some], seconds, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
    )


def fit(
    model: Any, loss: Callable[[Sequence[Example]], Any], drawn: Iterator[list[Example]], *, steps: int, rate: float
) -> None:
    """Train with AdamW at a rate that falls to a twentieth."""
    optimiser = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    model.train()
    for number, some in enumerate(drawn):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(some)
        value.backward()
        optimiser.step()
        falling.step()
        optimiser.zero_grad()
        if number % 40 == 0:
            print(f"step {number} of {steps}: loss {value.item():.3f}", flush=True)


def copy_of(base: Path, out: Path, tasks: Sequence[Sequence[Example]], *, steps: int) -> None:
    """Fine-tune a copy of an encoder, with a head over the labels of these tasks."""
    torch.manual_seed(0)
    labels = sorted({label for rows in tasks for _, _, label in rows})
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=128)
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: k for k, label in enumerate(labels)}}
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(labels), **names)

    def loss(some: Sequence[Example]) -> Any:
        return model(
            **encoded(tokenizer, some), labels=torch.tensor([labels.index(label) for _, _, label in some])
        ).loss

    fit(model, loss, batches(tasks, steps, 32), steps=steps, rate=2e-4)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def adapter_of(base: Path, out: Path, rows: Sequence[Example], *, steps: int) -> None:
    """Train a LoRA adapter of an encoder-decoder that writes labels."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    everywhere = ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=everywhere, task_type="SEQ_2_SEQ_LM")
    model = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(base), lora)

    def loss(some: Sequence[Example]) -> Any:
        read = encoded(tokenizer, [(prompt((a, b)) if b else a, None, label) for a, b, label in some])
        wanted = tokenizer([label for _, _, label in some], padding=True, return_tensors="pt").input_ids
        wanted[wanted == tokenizer.pad_token_id] = -100
        return model(input_ids=read.input_ids, attention_mask=read.attention_mask, labels=wanted).loss

    fit(model, loss, batches([rows], steps, 16), steps=steps, rate=2e-3)
    model.save_pretrained(str(out))


def main() -> None:
    """Make the experts, the list that names them, and the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="folder of a dense model")
    parser.add_argument("glue", type=Path, help="GLUE's folder, as TSV")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--shared", action="store_true", help="three tasks with one label set")
    parser.add_argument("--lora", action="store_true", help="adapters of a model that writes")
    parser.add_argument("--steps", type=int, default=160, help="of each expert")
    given = parser.parse_args()
    tasks = ONE_LABEL_SET if given.shared else OWN_LABELS
    (given.out / "rows").mkdir(parents=True, exist_ok=True)
    every = []
    for task in tasks:
        train, past, requests = examples(given.glue, task)
        write_rows(given.out / "rows", task.name, past, requests)
        if given.lora:
            adapter_of(given.base, given.out / task.name, train, steps=given.steps)
        else:
            copy_of(given.base, given.out / task.name, [train], steps=given.steps)
        every.append(train)
    if not given.lora:
        copy_of(given.base, given.out / "dense", every, steps=given.steps * len(tasks))
    listed = "".join(f'\n[[experts]]\npath = "{task.name}"\ntask = "{task.name}"\n' for task in tasks)
    (given.out / "experts.toml").write_text(f'base = "{given.base.resolve()}"\n{listed}', encoding="utf-8")


if __name__ == "__main__":
    main()
