"""The bare model: a process that runs the dense forward pass on texts, and nothing else.

Reads the texts of its batches as one JSON line, then names of ways, and answers each with texts a second, or, for texts
one by one, with the median's milliseconds. What is measured is tokens and model; tanbr's pass is the one that its
server has chosen for itself.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from tanbr.merge import open as open_moe
from tanbr.moe.text import TextEncoder
from tanbr.serve.engine import Engine


@torch.inference_mode()
def main() -> None:
    """Answer until the input ends."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    moe = open_moe(folder)
    model, engine = moe.dense(), Engine(moe, backend="auto")
    encode = TextEncoder.of(folder, vocab_size=model.config.vocab_size)
    batches = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    for line in sys.stdin:
        alone = "one by one" in line
        asked = [batch for batch in batches if (len(batch) == 1) == alone]
        seconds = []
        for batch in asked:
            started = time.perf_counter()
            _ = engine.logits(batch) if line.startswith("tanbr") else model(**encode(batch))
            seconds.append(time.perf_counter() - started)
        found = 1e3 * statistics.median(seconds) if alone else sum(map(len, asked)) / sum(seconds)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
