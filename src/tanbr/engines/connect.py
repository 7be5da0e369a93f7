"""From a configuration that names an engine to the backend that talks to it.

Whether the engine runs the model that tanbr merges is found out before any weights are sent to it.
"""

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tanbr.engines.connection import Connection, EngineRefused
from tanbr.engines.dialect import Dialect, Served
from tanbr.engines.llamacpp import LlamaCpp
from tanbr.engines.merge_files import AdapterFile, MergeFiles, tensors_of
from tanbr.engines.remote import Remote
from tanbr.engines.vllm import START, NoDevMode, Vllm, VllmAdapter
from tanbr.errors import ConfigError, InputError, TanbrError
from tanbr.merge import Moe
from tanbr.merge.sources import OverBase
from tanbr.merge.sources.alike import weights_of
from tanbr.merge.sources.over_base import BASE
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.text import TextEncoder, positions
from tanbr.serve.backends import Builder
from tanbr.serve.config import ServeConfig
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")

ENGINES: dict[str, type[Dialect]] = {"vllm": Vllm, "llamacpp": LlamaCpp}
TOKEN = "TANBR_ENGINE_TOKEN"  # noqa: S105 - the variable's name
PROBE = "The quick brown fox jumps over 13 lazy dogs."  # that both tokenizers must read alike
HOLDS = {"float32": {"float32", "bfloat16", "float16"}}  # dtype → what it holds without loss, beside itself
ADVICE = "start it with what `tanbr merge` makes of this checkpoint"


def engine_builder(config: ServeConfig) -> Builder | None:
    """Make the builder of a backend for the engine that a configuration names; None if it names none.

    Raises ConfigError if the other settings do not go with it.
    """
    engine, url = config.engine, config.engine_url
    if engine is None:
        if url is not None:
            raise ConfigError(f"--engine-url needs --engine, which is one of {', '.join(ENGINES)}")
        return None
    if url is None:
        raise ConfigError(f"--engine {engine} needs --engine-url, the address at which it answers")
    if config.models > 1 or config.memory is not None:
        raise ConfigError("an engine holds one model; leave --models and --memory out")
    if config.backend != "torch":
        raise ConfigError(f"an engine computes as it was started (got {config.backend}); leave --backend out")

    def build(moe: Moe, *, blend: Blend | None, **_: Any) -> Remote:  # the rest is for models in this process
        remote = connect(moe, engine=engine, url=url, folder=config.engine_folder)
        try:
            if blend is not None:
                remote.merge(moe, blend)
        except BaseException:
            remote.close()
            raise
        return remote

    return build


def connect(
    moe: Moe,
    *,
    engine: str,
    url: str,
    folder: str | None = None,
    as_adapter: bool | None = None,
    out: Path | None = None,
) -> Remote:
    """Find an engine that runs this model; raises if it is not there, or runs another one.

    Blends of adapters are sent `as_adapter`, or as whole models, or as the engine takes them if that is not said. The
    first adapter is written to the new folder `out`, and stays there, if that is given.
    """
    dense = moe.plan.config().architectures[0]
    if not dense.endswith("ForCausalLM"):
        raise ConfigError(
            f"{engine} runs causal language models, and {moe.path} is merged to a {dense}; leave --engine out"
        )
    with ExitStack() as undo:
        connection = Connection(url, token=os.environ.get(TOKEN))
        undo.callback(connection.close)
        dialect = _dialect(moe, engine, connection, as_adapter)
        connection.call(dialect.served())  # nothing is written for an engine that is not there
        files = MergeFiles(moe, dialect.kind, folder=folder)
        undo.callback(files.close)
        if out is not None:
            files.write_first_to(AdapterFile(moe, out, keep=True))
        remote = Remote(moe, dialect, connection, files, lambda encode: check_same(moe, encode, dialect, connection))
        undo.pop_all()
        return remote


def _dialect(moe: Moe, engine: str, connection: Connection, as_adapter: bool | None) -> Dialect:
    """Choose what an engine is given: one adapter, if it takes such and blends are no more than that, or whole models.

    How the engine was started says which: vLLM takes adapters, or whole models, only where it was told to.
    """
    if as_adapter and engine != "vllm":
        raise ConfigError(f"--as-adapter is for vllm (got {engine}); leave it out")
    whole = ENGINES[engine](connection)
    adapters = isinstance(moe.source, OverBase) and bool(moe.source.adapters)
    if engine != "vllm" or not (adapters if as_adapter is None else as_adapter):
        return whole
    adapter = VllmAdapter(connection)
    try:
        adapter.check(moe)
        if connection.call(adapter.takes_adapters()):
            return adapter
        why = f"or, since all experts are adapters, {START}"
    except InputError as error:
        if as_adapter:
            raise
        why = f"no adapter can be sent: {error}"
    if as_adapter:
        raise EngineRefused(f"the engine at {connection.url} takes no adapters; {START}")
    try:
        connection.call(whole.served())
    except NoDevMode as error:
        raise EngineRefused(f"{error} ({why})") from None
    log.info("the engine is sent whole models (%s)", why)
    return whole


def check_same(moe: Moe, encode: TextEncoder, dialect: Dialect, connection: Connection) -> Served:
    """Ask the engine what it serves; refuse another model, as far as the engine tells."""
    served = connection.call(dialect.served())
    where = f"the engine at {connection.url}"
    _check_tensors(moe, served, where, same=dialect.keeps_base)
    longest = positions(moe.path)
    if served.positions is not None and longest is not None and served.positions > longest:
        raise ConfigError(f"{where} reads {served.positions} tokens, and {moe.path} has {longest} positions; {ADVICE}")
    if served.quantised is not None:
        raise ConfigError(
            f"{where} quantises its weights ({served.quantised}), and merges are not; start it without that"
        )
    for dtype in sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors_of(moe)}):
        if served.dtype is not None and dtype not in {served.dtype, *HOLDS.get(served.dtype, ())}:
            raise ConfigError(
                f"{where} computes in {served.dtype}, and {moe.path} is {dtype}; start it with --dtype {dtype}"
            )
    theirs, ours = connection.call(dialect.tokens(PROBE)), list(encode.encode([PROBE]).columns["input_ids"][0])
    if theirs is not None and list(theirs) != ours:
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
        base = ((name, moe.checkpoint.tensor(f"{BASE}:{name}")) for name in ours)
        name = next((name for name, tensor in base if not torch.equal(tensor, started.tensor(name))), None)
        if name is not None:
            raise ConfigError(
                f"{where} runs {served.model}, whose {name} is not that of {moe.path}; start it with that base"
            )
