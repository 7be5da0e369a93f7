"""Whether checkpoints can be experts of one model: architecture, vocabulary and tensors are the same."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tanbr.errors import CheckpointError
from tanbr.merge.sources.source import check_depth
from tanbr.moe.checkpoint import Checkpoint, TensorSpec, check_regular
from tanbr.moe.families import read_settings

# Settings that say what weights mean; those of training (dropout, …) may differ.
MEANING = (
    "hidden_act", "hidden_activation", "activation_function", "activation", "feed_forward_proj", "dense_act_fn",
    "num_attention_heads", "num_heads", "n_head", "num_key_value_heads", "head_dim", "is_decoder",
    "is_encoder_decoder", "position_embedding_type", "rope_parameters", "rope_scaling",
    "relative_attention_num_buckets", "relative_attention_max_distance", "sliding_window", "layer_norm_eps",
    "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "tie_word_embeddings", "scale_embedding",
)  # fmt: skip
# Tensors that a model makes of its settings, and that some versions of transformers have saved all the same.
COUNTED = re.compile(r"(^|\.)(position_ids|token_type_ids|rotary_emb\.inv_freq)$")
WORDS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")


def check_alike(base: Checkpoint, experts: Sequence[Checkpoint]) -> None:
    """Refuse experts that are not copies of one model, and a base that cannot be their ancestor."""
    first = experts[0]
    for checkpoint in experts:
        check_base(checkpoint)
    _check_model(first, base)
    for other in experts[1:]:
        _check_model(first, other, "architectures")
        lacking = sorted(weights_of(first).keys() ^ weights_of(other).keys())
        if lacking:
            has, lacks = (first, other) if lacking[0] in first.specs else (other, first)
            raise CheckpointError(f"experts must hold the same tensors: {has.path} has {lacking[0]}, {lacks.path} not")


def check_base(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that nothing can be added to, or that asks for more layers than it has."""
    if "quantization_config" in checkpoint.config:
        raise CheckpointError(f"{checkpoint.path} is quantised; load it with transformers, dequantise and save it")
    check_depth(checkpoint)


def _check_model(first: Checkpoint, other: Checkpoint, *keys: str) -> None:
    """Refuse models whose weights or words mean different things, or that differ in further settings `keys`."""
    one, two = read_settings(first.config), read_settings(other.config)
    odd = next((key for key in ("model_type", *keys, *MEANING) if one.get(key) != two.get(key)), None)
    if odd is not None:
        raise CheckpointError(
            f"experts must be of one architecture, but {odd} of {first.path} is {one.get(odd)} and of {other.path} "
            f"{two.get(odd)}; name checkpoints that were fine-tuned from one base"
        )
    words = ((_words(first.path / name), _words(other.path / name)) for name in WORDS)
    differ = next((mine != theirs for mine, theirs in words if mine is not None and theirs is not None), False)
    sizes = one.get("vocab_size"), two.get("vocab_size")
    if sizes[0] != sizes[1] or differ:
        raise CheckpointError(
            f"experts must share one vocabulary, but {first.path} ({sizes[0]} words) and {other.path} ({sizes[1]}) "
            "differ in theirs; name checkpoints that were fine-tuned with the tokenizer of their base"
        )


def _words(file: Path) -> Any:
    """Read a vocabulary; None if there is none, or a broken one: loading the tokenizer says what is wrong with it."""
    if not file.exists():
        return None
    check_regular(file)
    try:
        return json.loads(file.read_bytes())["model"]["vocab"] if file.name == "tokenizer.json" else file.read_bytes()
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def weights_of(checkpoint: Checkpoint) -> Mapping[str, TensorSpec]:
    """List a checkpoint's tensors but those that follow from its settings."""
    return {name: spec for name, spec in checkpoint.specs.items() if not COUNTED.search(name)}
