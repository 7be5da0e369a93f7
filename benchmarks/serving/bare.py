"""The bare model: a process that runs the dense forward pass on batches, and nothing else.

Reads JSON lines {"size": n, "batches": m, "own": false} and answers each with the seconds of every batch, by
transformers' forward pass or by tanbr's own. The batches are tokenised beforehand: what is measured is the model alone.
"""

import json
import sys
import time
from pathlib import Path

import torch

from serving.models import texts
from tanbr.merge import open as open_moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.backends import bert_pass


@torch.inference_mode()
def main() -> None:
    """Answer until the input ends."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    model = open_moe(folder).dense()
    encode = TextEncoder.of(folder, vocab_size=model.config.vocab_size)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        batches = [encode(texts(asked["size"], seed=seed)) for seed in range(asked["batches"])]
        seconds = []
        for batch in batches:
            started = time.perf_counter()
            _ = bert_pass.logits(model, **batch) if asked["own"] else model(**batch)
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
