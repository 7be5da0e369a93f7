"""What recognising and counting cost beside the rivals, and beside a forward pass of MiniLM's size."""

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from monitoring.data import Data, taught
from monitoring.rivals import KINDS, Linear, joined, rivals_of
from tanbr.types import Text

SHARES = {1: 64, 32: 128}  # batch → texts of a round of the serving path


def seconds(action: Callable[[], Any]) -> float:
    """Give the CPU seconds an action takes."""
    start = time.process_time()
    action()
    return time.process_time() - start


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Give the median, and half the range between the quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(middle), "spread": float(high - low) / 2}


def measure(data: Data, *, per_task: int, repeats: int, seed: int) -> dict[str, Any]:
    """CPU microseconds per request from strings to ψ, and the serving path's share of a forward pass, by rounds."""
    rng = np.random.default_rng(seed)
    texts, _ = data.everything()
    requests = [texts[place] for place in rng.integers(len(texts), size=1024)]
    monitor = taught(data, per_task)
    recogniser = monitor.snapshot()

    def whole(batch: int) -> None:
        for start in range(0, len(requests), batch):
            monitor.observe(requests[start : start + batch])
        monitor.close_slot()

    def predict(linear: Linear, method: Any) -> None:
        method.predict(linear.transform(requests))

    actions = {f"tanbr monitor, batches of {batch}": partial(whole, batch) for batch in (1024, 32, 1)}
    for kind in KINDS:
        linear, quantifiers = rivals_of(data, per_task, kind)
        methods = {"argmax counted": linear.model, **{f"QuaPy {name}": way for name, way in quantifiers.items()}}
        actions |= {f"{kind}, {name}": partial(predict, linear, method) for name, method in methods.items()}
    result: dict[str, Any] = {}
    for name, action in actions.items():
        action()
        took = quartiles([1e6 * seconds(action) / len(requests) for _ in range(repeats)])
        result[name] = {"microseconds a request": took["median"], "spread": took["spread"]}
    ours = result["tanbr monitor, batches of 1024"]["microseconds a request"]
    for row in result.values():
        row["times the monitor's"] = row["microseconds a request"] / ours

    for batch, count in SHARES.items():
        few = requests[:count]
        parts = [few[start : start + batch] for start in range(0, count, batch)]
        forward = minilm(parts)

        def recognise(parts: Sequence[Sequence[Text]] = parts) -> None:
            for part in parts:
                recogniser.recognise(part)

        forward()
        recognise()
        rounds = [(seconds(recognise), seconds(forward)) for _ in range(repeats)]  # side by side: load hits both
        shares = quartiles([one / two for one, two in rounds])
        result[f"recognising before the answer, batches of {batch}"] = {
            "microseconds a request": 1e6 * float(np.median([one for one, _ in rounds])) / count,
            "forward pass": 1e6 * float(np.median([two for _, two in rounds])) / count,
            "share of the forward pass": shares["median"],
            "spread": shares["spread"],
        }
    return result


def minilm(parts: Sequence[Sequence[Text]]) -> Callable[[], Any]:
    """Give a forward pass over batches: BERT with MiniLM's shape and random weights, about 1.3 tokens a word."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = BertModel(shape).eval()
    batches = []
    for part in parts:
        sizes = [min(128, 3 + round(1.3 * len(re.findall(r"\w+|[^\w\s]", joined(text))))) for text in part]
        tokens = torch.randint(1000, 30000, (len(sizes), max(sizes)))
        mask = (torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]).long()
        batches.append((tokens, mask))

    def forward() -> None:
        with torch.inference_mode():
            for tokens, mask in batches:
                model(input_ids=tokens, attention_mask=mask)

    return forward
