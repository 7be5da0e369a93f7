"""How the embedded models are made and measured: generated tasks in, an MoE and what its blends are worth out.

One is a BERT-MoE that answers by a head, the other a T5-MoE that writes its answers.
"""

import hashlib
from pathlib import Path

import torch
from rich.console import Group
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tanbr.lab.answers import model_for
from tanbr.lab.corpus import Progress
from tanbr.lab.survey import candidates, survey
from tanbr.lab.tasks import lexicon, tiny
from tanbr.lab.train.ancestor import train_ancestor
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.course import Course
from tanbr.lab.train.objectives import Classification, Objective, TextToText
from tanbr.lab.train.pretrain import train_experts
from tanbr.merge import open as open_moe
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.serve.survey import Survey
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace

SURVEY_SEED = 500  # of the train split, but not the rows that were trained on
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WRITER_SPECIAL = ("<pad>", "</s>", "<unk>")  # T5's own


def train(
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

    answering = model_for(open_moe(model, device=config.device), space)
    held_out = {name: tiny.generate(name, survey_rows, seed=SURVEY_SEED) for name in names}
    blends = candidates(answering.moe.num_experts)[:survey_blends]
    worth = survey(answering, held_out, space=space, blends=blends, report=lambda n, N: report("survey", n, N, ""))
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    worth.save(model / "survey.json", command=command, model_sha256=digest, tasks=names, rows=survey_rows)
    return model, worth


def meanings(encoder: TextEncoder) -> torch.Tensor:
    """Number the meanings of the tokenizer's words (vocabulary,), synonyms alike; −1 for special tokens."""
    result = torch.full((len(encoder.tokenizer),), -1)
    numbers: dict[str, int] = {}
    for word, token in sorted(encoder.tokenizer.get_vocab().items()):
        if word not in (*SPECIAL, *WRITER_SPECIAL):
            result[token] = numbers.setdefault(lexicon.meaning(word), len(numbers))
    return result


def word_tokenizer(*, max_length: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer of the generated tasks: one token a word."""
    words = {word: i for i, word in enumerate((*SPECIAL, *tiny.vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106 - not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, words[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL},
    )


def writer_tokenizer(*, max_length: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a model that writes: one token a word, one an answer, and an end after each text."""
    written = dict.fromkeys(answer for task in tiny.TASKS for answer in text_to_text.answers(task))
    words = {word: i for i, word in enumerate(dict.fromkeys((*WRITER_SPECIAL, *tiny.vocabulary(), *written)))}
    pad, end, unknown = WRITER_SPECIAL
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, words[end])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        pad_token=pad,
        eos_token=end,
        unk_token=unknown,
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
