"""A tiny T5-MoE and a tiny Mixtral with a tokenizer of sixty words: random, but whole."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from moe.tiny import build

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
