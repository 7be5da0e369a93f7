"""Small tasks, tokenizers and dense checkpoints to train from."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

from tanbr.lab.tasks import glue
from tanbr.lab.train.checkpoints import prepare, upcycled, write
from tanbr.lab.train.config import Preset
from tanbr.lab.train.pretrain import train_from_dense
from tanbr.moe.text import TextEncoder
from tanbr.tasks.card import Card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

logging.disable_progress_bar()
logging.set_verbosity_error()

TASKS = (
    Task("RTE", metrics=("accuracy",), labels=("entailment", "not_entailment"), pair=True),
    Task("SST-2", metrics=("accuracy",), labels=("0", "1")),
    Task("STS-B", metrics=("pearson",), scale=(0.0, 5.0), pair=True),
)
SPACE = LabelSpace(TASKS)
WORDS = [f"w{i}" for i in range(20)]
SCORES = [f"{i / 5:.1f}" for i in range(26)]
CONFIG = Preset(
    max_length=16, train_rows=12, batch=2, steps=6, warmup=1, save_every=2, log_every=1,
    expert_rate=1e-2, shared_rate=1e-3, head_rate=1e-2, train_embeddings=False,
    ancestor_steps=4, ancestor_rate=1e-3,
)  # fmt: skip


def rows(task: Task, count: int, *, start: int = 0) -> list[Row]:
    made = []
    for i in range(start, start + count):
        first = " ".join(WORDS[(i * j) % 20] for j in range(2 + i % 5))
        target = (i % 26) / 5 if task.graded else float(i % len(task.labels))
        made.append(Row(task.name, (first, f"w{i % 7}") if task.pair else first, target))
    return made


TRAIN = {task.name: rows(task, 10 + 4 * v) for v, task in enumerate(TASKS)}
HELD = {task.name: rows(task, 8, start=50) for task in TASKS}


def tokenizer(*, words: list[str] | None = None) -> PreTrainedTokenizerFast:
    vocabulary = ["<pad>", "</s>", "<unk>", *(words or [*WORDS, *SPACE.columns, *SCORES])]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=16,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


ENCODER = TextEncoder(tokenizer(), max_length=16)


def bert(folder: Path, *, seed: int = 0) -> Path:
    """Write an encoder without a head."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def t5(folder: Path, *, seed: int = 0) -> Path:
    """Write a gated T5 with an output table of its own, as version 1.1 has it."""
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    config.tie_word_embeddings = config.scale_decoder_outputs = False
    model = T5ForConditionalGeneration(config)
    model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


DENSE = {"bert": bert, "t5": t5}


def moe(folder: Path, kind: str = "bert", *, experts: int = 3, card: Card | None = None) -> Path:
    """Write an MoE whose experts differ."""
    start = prepare(DENSE[kind](folder / "dense"), SPACE, folder / "start", max_length=16, seed=0)
    model = upcycled(start, experts=experts)
    with torch.no_grad():
        for weight in (weight for weight in model.parameters() if weight.dim() == 3):
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return write(model, folder / "moe", start, card=card)


class Stopped(Exception):
    """What a test raises in the middle of a run."""


def train(
    dense: Path, out: Path, *, stop_at: tuple[str, int] | None = None, config: Preset = CONFIG, **options: Any
) -> Path:
    """Train an MoE from a dense checkpoint; `stop_at` is a phase and a step of it."""

    def report(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == stop_at:
            raise Stopped

    return train_from_dense(config, dense=dense, rows=TRAIN, out=out, report=report, tasks=glue.TASKS, **options)[0]
