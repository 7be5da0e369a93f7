"""A tiny T5-MoE and a tiny Mixtral with a tokenizer of sixty words: random, but whole."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from moe.tiny import build
from tanbr.serve.decode import Row
from tanbr.serve.engine import Engine

WORDS = ["<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(61))]


def write(model_type: str, folder: Path, **changes: int) -> Path:
    """Write a checkpoint with its tokenizer."""
    build(model_type, **changes).save_pretrained(folder)
    return write_tokenizer(folder, ends=model_type == "t5_moe")


def write_tokenizer(folder: Path, *, ends: bool = False) -> Path:
    """Write a tokenizer into a checkpoint's folder; `ends` puts a mark behind every text."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.WordPiece(prefix="##")
    if ends:
        words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def written(engine: Engine, prompts: Sequence[str], *, max_tokens: int) -> list[str]:
    """What the first model that answers writes for each prompt, past the queue."""
    backend, encode = engine.live.backend, engine.encode
    inputs = encode.pad(encode.encode(prompts).columns, left=backend.causal)
    rows = [Row(max_tokens) for _ in prompts]
    backend.generate(inputs, rows)
    return [encode.tokenizer.decode(row.tokens, skip_special_tokens=True) for row in rows]
