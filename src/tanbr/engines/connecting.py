"""From a configuration that names an engine to the backend that talks to it."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tanbr.engines import ADAPTERS, ENGINES
from tanbr.engines.adapter_file import KeptAdapter
from tanbr.engines.connection import Connection
from tanbr.engines.dialect import Dialect, EngineRefused
from tanbr.engines.identity import check_causal
from tanbr.engines.merge_files import MergeFiles
from tanbr.engines.remote import Remote
from tanbr.engines.vllm import NoDevMode
from tanbr.engines.vllm_adapter import START
from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
from tanbr.merge.sources import OverBase
from tanbr.moe.text import Inputs
from tanbr.serve.backends import Builder
from tanbr.serve.config import ServeConfig
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")

TOKEN = "TANBR_ENGINE_TOKEN"  # noqa: S105 - the variable's name


def connect(
    moe: Moe,
    *,
    engine: str,
    url: str,
    fingerprint: str,
    folder: str | None = None,
    as_adapter: bool | None = None,
    out: Path | None = None,
) -> Remote:
    """Find an engine that runs this model; refused with a sentence if it is not there, or runs another.

    Blends of adapters are sent `as_adapter`, or as whole models, or as the engine takes them if that is not said. The
    first adapter is written to the new folder `out`, and stays there, if that is given.
    """
    check_causal(moe, engine)
    connection = Connection(url, token=os.environ.get(TOKEN))
    try:
        dialect = _dialect(moe, engine, connection, as_adapter)
        connection.call(dialect.served())  # nothing is written for an engine that is not there
        files = MergeFiles(moe, dialect.kind, folder=folder)
        if out is not None:
            files.write_to(KeptAdapter(moe, out))
        try:
            return Remote(moe, dialect, connection, files, fingerprint=fingerprint)
        except BaseException:
            files.close()
            raise
    except BaseException:
        connection.close()
        raise


def _dialect(moe: Moe, engine: str, connection: Connection, as_adapter: bool | None) -> Dialect:
    """Choose what an engine is given: one adapter, if it takes such and blends are no more than that, or whole models.

    How the engine was started says which: vLLM takes adapters, or whole models, only where it was told to.
    """
    if as_adapter and engine not in ADAPTERS:
        raise ConfigError(f"--as-adapter is for {', '.join(ADAPTERS)} (got {engine}); leave it out")
    whole = ENGINES[engine](connection)
    if engine not in ADAPTERS or not (as_adapter or (as_adapter is None and _has_adapters(moe))):
        return whole
    adapter = ADAPTERS[engine](connection)
    try:
        adapter.check(moe)
        if connection.call(adapter.takes()):
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


def _has_adapters(moe: Moe) -> bool:
    return isinstance(moe.source, OverBase) and bool(moe.source.adapters)


def connected(config: ServeConfig, moe: Moe, *, models: int, fingerprint: str) -> Remote | None:
    """Find the engine that a configuration names; None if it names none, an error if the rest does not go with it."""
    if config.engine is None and config.engine_url is not None:
        raise ConfigError(f"--engine-url needs --engine, which is one of {', '.join(ENGINES)}")
    if config.engine is None:
        return None
    if config.engine_url is None:
        raise ConfigError(f"--engine {config.engine} needs --engine-url, the address at which it answers")
    if models > 1:
        raise ConfigError(f"an engine holds one model (got models {models}); leave --models and --memory out")
    if config.backend != "torch":
        raise ConfigError(f"an engine computes as it was started (got {config.backend}); leave --backend out")
    url, folder = config.engine_url, config.engine_folder
    return connect(moe, engine=config.engine, url=url, fingerprint=fingerprint, folder=folder)


def builder(model: Remote) -> Builder:
    """Make what hands a model over that is there already; a blend (K,) that it is asked for is loaded."""

    def build(
        moe: Moe,
        *,
        blend: Blend | None,
        device: str,  # noqa: ARG001 - the engine has its own
        probes: Callable[[], Sequence[Inputs]],  # noqa: ARG001
        least_agreement: float,  # noqa: ARG001
    ) -> Remote:
        if blend is not None:
            model.merge(moe, blend)
        return model

    return build
