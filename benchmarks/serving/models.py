"""The models that are served, at two sizes, and the texts that are sent to them: made here, or given."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from tanbr.lab.corpus import Dataset
from tanbr.lab.tasks import glue, tiny
from tanbr.moe import embedded
from tanbr.moe.families.bert import BertMoeConfig, BertMoeForSequenceClassification
from tanbr.moe.text import TextEncoder
from tanbr.tasks.card import FILE
from tanbr.types import Text

K = 8
SIZES = {
    "quick": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4},
    "minilm": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
LABELS = 15
EXPORT = """
import sys, torch
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
names = ["input_ids", "attention_mask", "token_type_ids"]
texts = (torch.ones(2, 9, dtype=torch.int64),) * 2 + (torch.zeros(2, 9, dtype=torch.int64),)
axes = {name: {0: "batch", 1: "length"} for name in names} | {"logits": {0: "batch"}}
torch.onnx.export(model, texts, f"{sys.argv[1]}/model.onnx", input_names=names, output_names=["logits"],
                  dynamic_axes=axes, opset_version=17, dynamo=False)
"""
QUANTISE = """
import sys
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic(f"{sys.argv[1]}/model.onnx", f"{sys.argv[1]}/model_quantized.onnx", per_channel=True)
"""
WORDS = 60  # a text's length, about as many tokens


@dataclass(frozen=True)
class Given:
    """What is measured with."""

    work: Path  # for models, states and logs
    glue: Path | None = None  # GLUE's folder
    models: Mapping[str, Path] = field(default_factory=dict)  # size → a BERT-MoE's folder, in place of random weights
    pythons: Mapping[str, str] = field(default_factory=dict)  # rival → the Python of an environment that has it

    def checkpoint(self, size: str) -> Path:
        """Find the MoE of a size, or make one with random weights."""
        return self.models[size] if size in self.models else checkpoint(size, self.work, like=self.tokenizer)

    @property
    def tokenizer(self) -> Path:
        """Where the tokenizer of models with random weights lies: beside a model that was given, if there is one."""
        return next(iter(self.models.values()), embedded.path())

    def dense(self, size: str) -> Path:
        """Merge the MoE evenly into what plain transformers loads, once."""
        folder = self.work / f"dense-{size}"
        if not folder.exists():
            command = [str(Path(sys.executable).with_name("tanbr")), "merge", str(self.checkpoint(size)), str(folder)]
            subprocess.run([*command, "--blend", "even", "--force"], check=True, stdout=subprocess.DEVNULL)
            about = folder / "tokenizer_config.json"  # Infinity's transformers 4 knows the class by its older name
            about.write_text(about.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
        return folder

    def onnx(self, size: str, *, quantised: bool) -> Path:
        """Write the dense model as Infinity's ONNX engine reads it, by the tools of its own environment; once."""
        plain, folder = self.work / f"onnx-{size}", self.work / f"onnx-{size}{'-int8' * quantised}"
        python = self.pythons["infinity"]
        if not plain.exists():
            shutil.copytree(self.dense(size), plain)
            subprocess.run([python, "-c", EXPORT, str(plain)], check=True, stdout=subprocess.DEVNULL)
            (plain / "model.safetensors").unlink()
        if not folder.exists():
            shutil.copytree(plain, folder)
            subprocess.run([python, "-c", QUANTISE, str(folder)], check=True, stdout=subprocess.DEVNULL)
            (folder / "model.onnx").unlink()
        return folder

    @cached_property
    def pool(self) -> list[str]:
        """Texts of the eight tasks of GLUE, pairs as one text; empty where GLUE was not given.

        Those that the model would have to cut are left out: vLLM refuses them.
        """
        if self.glue is None:
            return []
        rows = [row.text for pool in Dataset(self.glue).dev(limit=500).values() for row in pool]
        texts = [text if isinstance(text, str) else " ".join(text) for text in rows]
        vocabulary = BertMoeConfig.from_pretrained(self.tokenizer).vocab_size
        cut = TextEncoder.of(self.tokenizer, vocab_size=vocabulary).encode(texts).cut
        return [text for text, left_out in zip(texts, cut, strict=True) if not left_out]

    @property
    def history(self) -> Path:
        """Write past requests with their tasks: rows of GLUE that training may have seen, never those that are sent."""
        assert self.glue is not None
        pools = glue.load(self.glue, split="train", limit=100)
        rows = [{"text": row.text, "task": name} for name, pool in pools.items() for row in pool]
        path = self.work / "history.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def texts(self, count: int, *, seed: int = 0) -> list[str]:
        """Draw texts of GLUE, or make some of mixed lengths."""
        rng = random.Random(seed)
        return rng.choices(self.pool, k=count) if self.pool else texts(count, seed=seed, mixed=True)


def checkpoint(size: str, work: Path, *, like: Path | None = None) -> Path:
    """Write a BERT-MoE with random weights and the tokenizer of another one, the embedded model if None; once."""
    folder, like = work / f"bert-{size}", like or embedded.path()
    if not (folder / "model.safetensors").exists():
        disable_progress_bar()
        torch.manual_seed(0)
        vocabulary = BertMoeConfig.from_pretrained(like).vocab_size
        config = BertMoeConfig(**SIZES[size], num_experts=K, num_labels=LABELS, vocab_size=vocabulary)
        BertMoeForSequenceClassification(config).save_pretrained(folder)
        for file in [*like.glob("*token*"), *like.glob("vocab*")]:
            shutil.copy(file, folder)
    return folder


def with_tasks(size: str, work: Path) -> Path:
    """Write random weights with the embedded model's labels and card, so that its tasks are recognised."""
    folder = work / f"bert-{size}-tasks"
    if not folder.exists():
        shutil.copytree(checkpoint(size, work / "generated"), folder)
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
