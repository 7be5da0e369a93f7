"""Whether an engine runs the model that tanbr merges: found out before any weights are sent to it."""

from pathlib import Path

import torch

from tanbr.engines.dialect import Dialect, Served
from tanbr.errors import ConfigError, TanbrError
from tanbr.merge import Moe
from tanbr.merge.sources.alike import weights_of
from tanbr.merge.sources.source import BASE
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.text import TextEncoder, positions

PROBE = "The quick brown fox jumps over 13 lazy dogs."  # that both tokenizers must read alike
HOLDS = {"float32": {"float32", "bfloat16", "float16"}}  # dtype → what it holds without loss, beside itself
ADVICE = "start it with what `tanbr merge` makes of this checkpoint"


def check_same(moe: Moe, encode: TextEncoder, engine: Dialect) -> Served:
    """Ask the engine what it serves; refuse another model, as far as the engine tells."""
    served = engine.call(engine.served())
    where = f"the engine at {engine.url}"
    _check_tensors(moe, served, where, same=engine.many)
    longest = positions(moe.path)
    if served.positions is not None and longest is not None and served.positions > longest:
        raise ConfigError(f"{where} reads {served.positions} tokens, and {moe.path} has {longest} positions; {ADVICE}")
    if served.quantised is not None:
        raise ConfigError(
            f"{where} quantises its weights ({served.quantised}), and merges are not; start it without that"
        )
    for dtype in sorted({str(tensor.dtype).removeprefix("torch.") for tensor in moe.plan.specs.values()}):
        if served.dtype is not None and dtype not in {served.dtype, *HOLDS.get(served.dtype, ())}:
            raise ConfigError(
                f"{where} computes in {served.dtype}, and {moe.path} is {dtype}; start it with --dtype {dtype}"
            )
    theirs, ours = engine.call(engine.tokens(PROBE)), list(encode.encode([PROBE]).columns["input_ids"][0])
    if theirs is not None and theirs != ours:
        raise ConfigError(
            f"{where} has another tokenizer than {moe.path} (tokens {theirs[:4]} …, not {ours[:4]} …); {ADVICE}"
        )
    return served


def _check_tensors(moe: Moe, served: Served, where: str, *, same: bool) -> None:
    """Compare names and shapes, where the checkpoint that the engine was started with can be read here.

    If the engine keeps its weights, they must be the `same` as the base's.
    """
    if not Path(served.model).is_dir():
        return
    try:
        started = Checkpoint(served.model)
    except TanbrError:
        return  # weights in another form: the engine reads them, we cannot
    theirs, ours = {name: spec.shape for name, spec in weights_of(started).items()}, moe.plan.shapes
    name = next((name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)), None)
    if name is not None:
        raise ConfigError(
            f"{where} runs {served.model}, where {name} is {theirs.get(name, 'missing')}, but in a merge of {moe.path} "
            f"it is {ours.get(name, 'missing')}; {ADVICE}"
        )
    if same and started.path.resolve() != moe.path.resolve():
        for name in ours:
            if not torch.equal(moe.checkpoint.tensor(f"{BASE}:{name}"), started.tensor(name)):
                raise ConfigError(
                    f"{where} runs {served.model}, whose {name} is not that of {moe.path}; start it with that base"
                )
