"""An MoE checkpoint in, dense models out: merged in memory, and written as a folder that plain transformers loads."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import tanbr


def main() -> float:
    """Merge the embedded model's experts two ways; the largest difference between what memory and file answer."""
    moe = tanbr.open(tanbr.embedded())  # or your checkpoint's folder; no expert is in memory
    print(f"{moe.num_experts} experts in each of {len(moe.sites)} sites")
    blend = np.zeros(moe.num_experts)
    blend[[0, 2]] = 0.25, 0.75

    model = moe.dense()  # all experts alike
    moe.merge_into(model, blend)  # in place: only the FFNs' tensors change
    with tempfile.TemporaryDirectory() as folder:
        out = moe.export(blend, Path(folder) / "dense")  # with a certificate of what is in it
        print("wrote", ", ".join(sorted(path.name for path in out.iterdir())))
        stock = AutoModelForSequenceClassification.from_pretrained(out)
        inputs = AutoTokenizer.from_pretrained(out)("a fine film", return_tensors="pt")
        with torch.no_grad():
            difference = float((model(**inputs).logits - stock.eval()(**inputs).logits).abs().max())
    print(f"largest difference of a logit: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
