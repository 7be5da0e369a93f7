"""The faster of torch and ONNX Runtime, by a short trial on this machine, where both can run a model."""

import logging
import time
from collections.abc import Sequence
from typing import Unpack

import torch

from tanbr.merge import Moe
from tanbr.moe.text import Inputs
from tanbr.serve.backends.backend import Wanted
from tanbr.serve.backends.onnx_runtime import OnnxRuntime, runs
from tanbr.serve.backends.torch_eager import TorchEager

log = logging.getLogger("tanbr.serve")

ROUNDS = 5  # of the trial; the best of each backend counts
GAIN = 1.05  # how much faster than torch ONNX Runtime has to be


class Fastest:
    """Chooses when a model is built; what is built is one of the two."""

    name = "auto"

    @staticmethod
    def build(moe: Moe, **wanted: Unpack[Wanted]) -> TorchEager:
        """Merge into a new model, and let both answer the probes over the same memory."""
        plain = TorchEager.build(moe, **wanted)
        if wanted["device"] != "cpu" or not runs(plain.model):
            return plain
        other, probes = OnnxRuntime(plain.model, plain.outputs), wanted["probes"]()
        try:
            seconds = trial((plain, other), probes[:1])
        except Exception as error:  # whatever its library raises: torch serves as well
            log.warning("torch serves, as ONNX Runtime fails: %s: %s", type(error).__name__, error)
            return plain
        log.info("%.4f s by torch, %.4f s by ONNX Runtime for the same texts", *seconds)
        return other if seconds[0] > GAIN * seconds[1] else plain


def trial(backends: Sequence[TorchEager], probes: Sequence[Inputs]) -> list[float]:
    """Measure the processor's seconds that each takes for the same texts, in turn; the first round is not counted.

    Each has one thread, this one, as workers have while all are busy; so what else runs does not decide.
    """
    best, threads = [float("inf")] * len(backends), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for round_ in range(ROUNDS + 1):
            for number, backend in enumerate(backends):
                started = time.thread_time()
                for inputs in probes:
                    backend.classify(inputs)
                if round_:
                    best[number] = min(best[number], time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return best
