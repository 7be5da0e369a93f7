"""How task-routed MoEs are made: the embedded ones from generated tasks, others from a dense checkpoint and rows.

The embedded models are a BERT-MoE that answers by a head, and a T5-MoE that writes its answers.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tanbr.lab.corpus import Progress, Rows
from tanbr.lab.gates import Gated
from tanbr.lab.survey import candidates, survey
from tanbr.lab.tasks import glue, tiny, world
from tanbr.lab.train.ancestor import train_ancestor
from tanbr.lab.train.checkpoints import Figures, as_trained, digest, load, prepare
from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.expert_views import LIST
from tanbr.lab.train.objectives import Batches, Classification, Objective, TextToText, objective_of
from tanbr.lab.train.pretrain import Course, batch_sizes, train_experts, train_gates, train_together
from tanbr.merge import open as open_moe
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.serve.dense import DenseModel
from tanbr.serve.survey import Survey
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task

SURVEY_SEED = 500  # of the train split, but not the rows that were trained on
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WRITER_SPECIAL = ("<pad>", "</s>", "<unk>")  # T5's own


def train_embedded(
    config: PretrainConfig,
    *,
    out: Path,
    report: Progress,
    command: str,
    writes: bool = False,
    survey_rows: int = 250,
    survey_blends: int = 180,
) -> tuple[Path, Survey]:
    """Train a BERT-MoE, or a T5-MoE that `writes`, survey the blends, and write both into `out`/model."""
    device = device_of(config.device)  # before anything is written
    names = [task.name for task in tiny.TASKS]
    space = LabelSpace(tiny.TASKS)
    rows = {}
    for done, name in enumerate(names):
        report("rows", done, len(names), name)
        rows[name] = tiny.generate(name, config.train_rows, seed=config.seed)
    report("rows", len(names), len(names), "")
    tokenizer = (writer_tokenizer if writes else word_tokenizer)(max_length=config.max_length)
    encoder = TextEncoder(tokenizer, max_length=config.max_length)

    def steps(phase: str, done: int, total: int, loss: float) -> None:
        report(phase, done, total, f"loss {loss:.3f}")

    out.mkdir(parents=True, exist_ok=True)
    objective: Objective = (TextToText if writes else Classification)(space, encoder)
    sizes = [config.batch] * len(names)
    batches = Batches(rows, objective=objective, sizes=sizes, seed=config.seed, device=device)
    course = Course(batches, objective, config, steps)
    ancestor = train_ancestor(course, meanings=meanings(encoder), out=out / "ancestor")
    model = train_experts(ancestor, course, out=out / "model", first_step=config.ancestor_steps)

    answering = DenseModel(open_moe(model, device=config.device), space)
    held_out = {name: tiny.generate(name, survey_rows, seed=SURVEY_SEED) for name in names}
    blends = candidates(answering.moe.num_experts)[:survey_blends]
    worth = survey(answering, held_out, blends=blends, report=lambda n, N: report("survey", n, N, ""))
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    worth.save(model / "survey.json", command=command, model_sha256=digest, tasks=names, rows=survey_rows)
    return model, worth


def meanings(encoder: TextEncoder) -> torch.Tensor:
    """Number the meanings of the tokenizer's words (vocabulary,), synonyms alike; −1 for special tokens."""
    result = torch.full((len(encoder.tokenizer),), -1)
    numbers: dict[str, int] = {}
    for word, token in sorted(encoder.tokenizer.get_vocab().items()):
        if word not in (*SPECIAL, *WRITER_SPECIAL):
            result[token] = numbers.setdefault(world.meaning(word), len(numbers))
    return result


def word_tokenizer(*, max_length: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer of the generated tasks: one token a word."""
    names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL}
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    words = (*SPECIAL, *tiny.vocabulary())
    return _tokenizer(words, single="[CLS] $A [SEP]", pair=pair, max_length=max_length, inputs=inputs, **names)


def writer_tokenizer(*, max_length: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a model that writes: one token a word, one an answer, and an end after each text."""
    pad, end, unknown = WRITER_SPECIAL
    written = (answer for task in tiny.TASKS for answer in text_to_text.answers(task))
    names = {"pad_token": pad, "eos_token": end, "unk_token": unknown}
    inputs = ["input_ids", "attention_mask"]
    words = (*WRITER_SPECIAL, *tiny.vocabulary(), *written)
    return _tokenizer(
        words, single=f"$A {end}", pair=f"$A {end} $B {end}", max_length=max_length, inputs=inputs, **names
    )


def _tokenizer(
    words: Iterable[str], *, single: str, pair: str, max_length: int, inputs: list[str], **names: str
) -> PreTrainedTokenizerFast:
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=names["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [(token, numbers[token]) for token in names.values() if token in single.split()]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, model_input_names=inputs, **names
    )


def tables(worth: Survey) -> Group:
    """Lay out what makes the problem real: own expert against uniform blend, best per mix against best fixed."""
    K = worth.blends.shape[1]
    own = Table("task", "own expert", "uniform blend", "points above", title="the task's metric", title_justify="left")
    for v, task in enumerate(tiny.TASKS):
        expert, uniform = worth.figures[v, v], worth.figures[K, v]
        own.add_row(task.name, f"{expert:.3f}", f"{uniform:.3f}", f"{100 * (expert - uniform):+.1f}")
    mixes = Table(
        "mixes", "best per mix", "best fixed", "uniform", "points above fixed", title="reward", title_justify="left"
    )
    for alpha in (0.1, 0.3, 1.0):
        stakes = worth.stakes(alpha)
        best, fixed, uniform = stakes["best_per_mix"], stakes["best_fixed"], stakes["uniform"]
        mixes.add_row(
            f"Dirichlet({alpha})", f"{best:.3f}", f"{fixed:.3f}", f"{uniform:.3f}", f"{100 * (best - fixed):+.1f}"
        )
    return Group(own, mixes)


def train_from_dense(
    config: PretrainConfig,
    *,
    dense: Path,
    rows: Rows,
    held: Rows,
    out: Path,
    report: Progress,
    unseen: Rows | None = None,
    tagged: bool = False,
    tasks: Sequence[Task] = glue.TASKS,
    gates: Callable[[Any], Gated] | None = None,
    workers: int = 1,
) -> tuple[Path, dict[str, Figures]]:
    """Train one expert per task from a dense BERT or T5, early stop by `held` rows; write it to `out`/model.

    With `adapters` they are LoRA adapters in `out`/adapters, and what is given is the list of them.
    With `ancestor_steps` the dense model learns all tasks first, and is written to `out`/ancestor. With `gates`,
    experts belong to no task: learned gates route every token. In the end an MoE of experts by task is scored on
    `unseen` rows, if there are any: with tags, and merged evenly.
    """
    device = device_of(config.device)  # before anything is written
    space = LabelSpace(tuple(task for task in tasks if task.name in rows))
    rows = {task.name: rows[task.name][: config.train_rows] for task in space.tasks}
    ancestor = prepare(dense, space, out / f"start-{digest(dense)}", max_length=config.max_length, seed=config.seed)
    settings = load(ancestor).config
    encoder = TextEncoder.of(ancestor, vocab_size=settings.vocab_size, max_length=config.max_length)
    objective = objective_of(settings, space, encoder, tagged=tagged)
    sizes = batch_sizes(rows, config)
    batches = Batches(rows, objective=objective, sizes=sizes, seed=config.seed, device=device)
    report("rows", 1, 1, f"{sum(map(len, rows.values()))} rows, {sum(sizes)} a step")

    def steps(phase: str, done: int, total: int, loss: float) -> None:
        report(phase, done, total, f"loss {loss:.3f}")

    course = Course(batches, objective, config, steps, workers if device.type == "cpu" else 1)
    if gates:
        return train_gates(ancestor, course, gates=gates, out=out / "model"), {}
    if config.ancestor_steps:
        ancestor = train_together(ancestor, course, out=out / "ancestor")
    folder = out / ("adapters" if config.adapters else "model")
    model = train_experts(ancestor, course, out=folder, held=held, first_step=config.ancestor_steps)
    model = model / LIST if config.adapters else model
    return model, as_trained(model, objective, unseen, device=config.device) if unseen else {}
