"""LoRA adapters of one base as experts: blended into a model, and, without touching the base, into one adapter.

Needs peft (`pip install 'tanbr[adapters]'`) to make and to load adapters; blending them needs nothing.
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import tanbr
from tanbr.merge.sources.one_adapter import export_adapter

SIZE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def write(folder: Path) -> tuple[Path, list[Path]]:
    """Save a tiny base and two adapters of unequal rank and targets; random factors stand for training."""
    base = folder / "base"
    BertForSequenceClassification(BertConfig(**SIZE)).save_pretrained(base)
    adapters = []
    for name, rank, targets in (("reviews", 4, ["query", "value"]), ("mails", 2, ["query", "intermediate.dense"])):
        config = LoraConfig(r=rank, lora_alpha=8, target_modules=targets, init_lora_weights=False)
        model = get_peft_model(BertForSequenceClassification.from_pretrained(base), config)
        model.save_pretrained(folder / name)
        adapters.append(folder / name)
    return base, adapters


def main() -> float:
    """Blend the adapters two ways; the largest difference between what the two models answer."""
    torch.manual_seed(0)
    blend = [0.75, 0.25]
    tokens = torch.randint(0, SIZE["vocab_size"], (4, 12))
    with tempfile.TemporaryDirectory() as scratch:
        base, adapters = write(Path(scratch))
        moe = tanbr.open(base, experts=adapters)  # adapters are mapped; nothing is loaded
        merged = moe.dense(blend)  # base + 0.75 s B A + 0.25 s B A, layer by layer

        one = export_adapter(moe, Path(scratch) / "one", blend=blend)  # the factors side by side, rank 4 + 2
        print("wrote", ", ".join(sorted(path.name for path in one.iterdir())))
        stock = PeftModel.from_pretrained(BertForSequenceClassification.from_pretrained(base), one).eval()
        with torch.no_grad():
            difference = float((merged(tokens).logits - stock(tokens).logits).abs().max())
    print(f"largest difference of a logit: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
