"""The models that are served: BERT-MoE with random weights at two sizes, and the texts that are sent to them."""

import random
import shutil
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from tanbr.lab.tasks import tiny
from tanbr.moe import embedded
from tanbr.moe.families.bert import BertMoeConfig, BertMoeForSequenceClassification
from tanbr.tasks.card import FILE
from tanbr.types import Text

K = 8
SIZES = {
    "quick": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4},
    "minilm": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
LABELS = 15
WORDS = 60  # a text's length, about as many tokens


def checkpoint(size: str, work: Path) -> Path:
    """Write a BERT-MoE with random weights and the embedded model's tokenizer, once."""
    folder = work / f"bert-{size}"
    if not (folder / "model.safetensors").exists():
        disable_progress_bar()
        torch.manual_seed(0)
        config = BertMoeConfig(**SIZES[size], num_experts=K, num_labels=LABELS)
        BertMoeForSequenceClassification(config).save_pretrained(folder)
        for file in embedded.path().glob("*token*"):
            shutil.copy(file, folder)
    return folder


def with_tasks(size: str, work: Path) -> Path:
    """Write the same with the embedded model's labels and card, so that its tasks are recognised."""
    folder = work / f"bert-{size}-tasks"
    if not folder.exists():
        shutil.copytree(checkpoint(size, work), folder)
        settings = BertMoeConfig.from_pretrained(folder)
        settings.id2label = BertMoeConfig.from_pretrained(embedded.path()).id2label
        settings.label2id = {name: column for column, name in settings.id2label.items()}
        settings.save_pretrained(folder)
        shutil.copy(embedded.path() / FILE, folder)
    return folder


def task_texts(count: int, *, seed: int = 0) -> list[Text]:
    """Make texts of all generated tasks in turn."""
    rows = zip(*(tiny.generate(task.name, 1 + count // len(tiny.TASKS), seed=seed) for task in tiny.TASKS), strict=True)
    return [row.text for some in rows for row in some][:count]


def texts(count: int, *, seed: int = 0, mixed: bool = False) -> list[str]:
    """Make texts of one length, so that batches are alike, or of mixed ones, a quarter to seven quarters of it."""
    rng = random.Random(seed)
    words = [word for row in tiny.generate("sentiment", 400, seed=9) for word in str(row.text).split()]
    lengths = [rng.randint(WORDS // 4, 7 * WORDS // 4) if mixed else WORDS for _ in range(count)]
    return [" ".join(rng.choice(words) for _ in range(length)) for length in lengths]
