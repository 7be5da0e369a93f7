"""How the embedded models are made from the generated tasks: a BERT-MoE with a head, and a T5-MoE that writes.

Their dense ancestor also learns to align pairs: for every token, whether its meaning occurs in the other text. A model
of this size does not find from labels of whole texts that it has to compare two texts word by word.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from tanbr.lab.corpus import Corpus, Progress
from tanbr.lab.survey import Survey, survey_to
from tanbr.lab.tasks import tiny, world
from tanbr.lab.train.checkpoints import write
from tanbr.lab.train.config import Preset
from tanbr.lab.train.objectives import Batches, Classification, Objective, TextToText
from tanbr.lab.train.pretrain import Course, train_experts
from tanbr.merge import open as open_moe
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace

SURVEY_SEED = 500  # of the train split, but not the rows that were trained on
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WRITER_SPECIAL = ("<pad>", "</s>", "<unk>")  # T5's own
ALIGNMENT = 2.0  # weight of the alignment of pairs in the loss; the embedded models were made with it
DECODER_LAYERS = 1  # of a T5: what it writes is one word


def train_embedded(
    config: Preset,
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
    names, space = [task.name for task in tiny.TASKS], LabelSpace(tiny.TASKS)
    rows = {}
    for done, name in enumerate(names, 1):
        rows[name] = tiny.generate(name, config.train_rows, seed=config.seed)
        report("rows", done, len(names), name)
    tokenizer = word_tokenizer(max_length=config.max_length, writes=writes)
    encoder = TextEncoder(tokenizer, max_length=config.max_length)
    objective: Objective = (TextToText if writes else Classification)(space, encoder)
    out.mkdir(parents=True, exist_ok=True)
    course = Course(Batches(rows, objective=objective, seed=config.seed, device=device), objective, config, report)
    ancestor = train_ancestor(course, out=out / "ancestor")
    model = train_experts(ancestor, course, out=out / "model", first_step=config.ancestor_steps)

    held = {name: tiny.generate(name, survey_rows, seed=SURVEY_SEED) for name in names}
    return model, survey_to(
        model / "survey.json", open_moe(model, device=config.device), Corpus("generated", tiny.TASKS, held, {}),
        blends=survey_blends, rows=survey_rows, command=command, report=lambda n, N: report("survey", n, N, ""),
    )  # fmt: skip


def train_ancestor(course: Course, *, out: Path) -> Path:
    """Train a BERT, or a T5 if the objective is to write, on all tasks and on alignment, and write it to `out`."""
    config, objective, device = course.config, course.objective, course.batches.device
    encoder, writes = objective.encoder, isinstance(objective, TextToText)
    torch.manual_seed(config.seed)
    model: Any = _t5(encoder, config) if writes else _bert(objective.space, encoder, config)
    probe = nn.Linear(config.hidden_size, 1)  # reads alignment off a token's hidden state; thrown away at the end
    both = nn.ModuleList([model, probe]).to(device)
    known_meanings = meanings(encoder).to(device)

    def gradients(step: int) -> dict[str, float]:
        batch = course.batches.at(step, size=config.batch)
        output = model(**objective.inputs(batch), output_hidden_states=True)
        labels = aligned(batch.inputs, known_meanings, end=encoder.tokenizer.eos_token_id)
        known = labels >= 0
        read = output.encoder_hidden_states if writes else output.hidden_states
        scores = probe(read[-2]).squeeze(-1)
        alignment = F.binary_cross_entropy_with_logits(scores[known], labels[known])
        answers = (objective.losses(output.logits, batch) * batch.truth["weight"]).mean()
        loss = answers + ALIGNMENT * alignment
        loss.backward()  # type: ignore[no-untyped-call]
        return {"ancestor": loss.item()}

    return course.phase(
        "ancestor",
        both,
        [{"params": list(both.parameters()), "lr": config.ancestor_rate}],
        gradients,
        steps=config.ancestor_steps,
        out=out,
        write=lambda: write(model, out, encoder.tokenizer),
    )


def aligned(inputs: dict[str, Tensor], meanings: Tensor, *, end: int | None = None) -> Tensor:
    """Label tokens (n, length): 1 if the meaning is in the other text (texts end with `end`), 0 if not, −1: no pair."""
    real = inputs["attention_mask"].bool()
    if "token_type_ids" in inputs:
        segment = inputs["token_type_ids"]
    else:
        ends = inputs["input_ids"].eq(-1 if end is None else end).long()
        segment = (ends.cumsum(dim=1) - ends) * real
    meaning = meanings[inputs["input_ids"]]
    across = segment.unsqueeze(2) != segment.unsqueeze(1)  # (n, length, length): the two are in different texts
    same = (meaning.unsqueeze(2) == meaning.unsqueeze(1)) & across & real.unsqueeze(1)
    word = real & (meaning >= 0) & segment.bool().any(dim=1, keepdim=True)
    return torch.where(word, same.any(dim=2).float(), -1.0)


def meanings(encoder: TextEncoder) -> Tensor:
    """Number the meanings of the tokenizer's words (vocabulary,), synonyms alike; −1 for special tokens."""
    result = torch.full((len(encoder.tokenizer),), -1)
    numbers: dict[str, int] = {}
    for word, token in sorted(encoder.tokenizer.get_vocab().items()):
        if word not in (*SPECIAL, *WRITER_SPECIAL):
            result[token] = numbers.setdefault(world.meaning(word), len(numbers))
    return result


def _bert(space: LabelSpace, encoder: TextEncoder, config: Preset) -> BertForSequenceClassification:
    settings = BertConfig(
        vocab_size=len(encoder.tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.ffn_size,
        max_position_embeddings=config.max_length,
        hidden_dropout_prob=0.0,  # no row is seen often enough to be memorised
        attention_probs_dropout_prob=0.0,
        pad_token_id=encoder.tokenizer.pad_token_id,
        id2label=dict(enumerate(space.columns)),
        label2id={name: column for column, name in enumerate(space.columns)},
    )
    return BertForSequenceClassification(settings)


def _t5(encoder: TextEncoder, config: Preset) -> T5ForConditionalGeneration:
    settings = T5Config(
        vocab_size=len(encoder.tokenizer),
        d_model=config.hidden_size,
        d_kv=config.hidden_size // config.heads,
        d_ff=config.ffn_size,
        num_layers=config.layers,
        num_decoder_layers=DECODER_LAYERS,
        num_heads=config.heads,
        dropout_rate=0.0,
        pad_token_id=encoder.tokenizer.pad_token_id,
        eos_token_id=encoder.tokenizer.eos_token_id,
        decoder_start_token_id=encoder.tokenizer.pad_token_id,
    )
    return T5ForConditionalGeneration(settings)


def word_tokenizer(*, max_length: int, writes: bool = False) -> PreTrainedTokenizerFast:
    """Make the tokenizer of the generated tasks: one token a word; if a model writes, an answer is one, too."""
    if writes:
        pad, end, unknown = WRITER_SPECIAL
        names = {"pad_token": pad, "eos_token": end, "unk_token": unknown}
        single, pair, inputs = f"$A {end}", f"$A {end} $B {end}", ["input_ids", "attention_mask"]
        written = [answer for task in tiny.TASKS for answer in text_to_text.answers(task)]
        words = [*WRITER_SPECIAL, *tiny.vocabulary(), *written]
    else:
        names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL}
        single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
        inputs, words = ["input_ids", "token_type_ids", "attention_mask"], [*SPECIAL, *tiny.vocabulary()]
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=names["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [(token, numbers[token]) for token in names.values() if token in single.split()]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, model_input_names=inputs, **names
    )
