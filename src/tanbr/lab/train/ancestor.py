"""The dense ancestor of all experts: it learns every task at once, and to align pairs of texts.

A model of this size does not find by itself, from labels of whole texts, that it has to compare two texts word by
word. So its last layer but one is also taught just that: for every token, whether its meaning occurs in the other
text of the pair. It plays the part that a language model's pre-training plays for a large one.

It is a BERT, or a T5 that writes its answers: that is for the objective to say.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.objectives import TextToText
from tanbr.lab.train.pretrain import Course
from tanbr.moe.text import TextEncoder
from tanbr.moe.writing import new_folder
from tanbr.tasks.metrics import LabelSpace

ALIGNMENT = 2.0  # weight of the alignment of pairs in the loss; the embedded models were made with it
DECODER_LAYERS = 1  # of a T5: what it writes is one word


def train_ancestor(course: Course, *, meanings: Tensor, out: Path) -> Path:
    """Train a BERT or T5 on all tasks and on alignment, by `meanings` (vocabulary,) of the words; write it to `out`."""
    config, objective = course.config, course.objective
    space, encoder = objective.space, objective.encoder
    torch.manual_seed(config.seed)
    writes = isinstance(objective, TextToText)
    model: Any = (
        T5ForConditionalGeneration(_t5_config(encoder, config))
        if writes
        else BertForSequenceClassification(_bert_config(space, encoder, config))
    )
    probe = nn.Linear(config.hidden_size, 1)  # reads alignment off a token's hidden state; thrown away at the end
    both = nn.ModuleList([model, probe]).to(course.device)
    meanings = meanings.to(course.device)

    def gradients(step: int) -> dict[str, float]:
        batch = course.batches.at(step)
        output = model(**objective.inputs(batch), output_hidden_states=True)
        labels = aligned(batch.inputs, meanings, end=encoder.tokenizer.eos_token_id)
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
        origin="",
        out=out,
        write=lambda: _write(model, encoder, out),
    )


def _write(model: PreTrainedModel, encoder: TextEncoder, out: Path) -> Path:
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
    return out


def aligned(inputs: dict[str, Tensor], meanings: Tensor, *, end: int | None = None) -> Tensor:
    """Label tokens (n, length): 1 if the meaning occurs in the other text, 0 if not, −1 where there is no pair.

    Where inputs do not say which text a token is of, every text ends with the token `end`.
    """
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


def _bert_config(space: LabelSpace, encoder: TextEncoder, config: PretrainConfig) -> BertConfig:
    return BertConfig(
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


def _t5_config(encoder: TextEncoder, config: PretrainConfig) -> T5Config:
    return T5Config(
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
