"""From a configuration that names an engine to the backend that talks to it."""

import os
from collections.abc import Callable, Sequence

from tanbr.errors import ConfigError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs
from tanbr.serve.config import ServeConfig
from tanbr.serve.engines import ENGINES
from tanbr.serve.engines.connection import Connection
from tanbr.serve.engines.dense_file import DenseFiles
from tanbr.serve.engines.identity import check_causal
from tanbr.serve.engines.remote import Remote
from tanbr.types import Blend

TOKEN = "TANBR_ENGINE_TOKEN"  # noqa: S105 - the variable's name


def connect(moe: Moe, *, engine: str, url: str, fingerprint: str, folder: str | None = None) -> Remote:
    """Find an engine that runs this model; refused with a sentence if it is not there, or runs another."""
    check_causal(moe, engine)
    connection = Connection(url, token=os.environ.get(TOKEN))
    try:
        dialect = ENGINES[engine](connection)
        connection.call(dialect.served())  # nothing is written for an engine that is not there
        files = DenseFiles(moe, folder=folder)
        try:
            return Remote(moe, dialect, connection, files, fingerprint=fingerprint)
        except BaseException:
            files.close()
            raise
    except BaseException:
        connection.close()
        raise


def check_engine(config: ServeConfig, *, models: int) -> None:
    """Refuse settings that an engine has no use for."""
    if config.engine is None and config.engine_url is not None:
        raise ConfigError("--engine-url needs --engine, which is vllm or sglang")
    if config.engine is None:
        return
    if config.engine_url is None:
        raise ConfigError(f"--engine {config.engine} needs --engine-url, the address at which it answers")
    if models > 1:
        raise ConfigError(f"an engine holds one model (got models {models}); leave --models and --memory out")
    if config.precision != "fp32":
        raise ConfigError(f"an engine computes as it was started (got {config.precision}); leave --precision out")


def remote(
    config: ServeConfig,
    fingerprint: str,
    moe: Moe,
    *,
    blend: Blend | None,
    device: str,  # noqa: ARG001 - the engine has its own
    probes: Callable[[], Sequence[Inputs]],  # noqa: ARG001
    least_agreement: float,  # noqa: ARG001
) -> Remote:
    """Build the backend of a service whose configuration names an engine; a blend (K,) that is given is loaded."""
    engine, url = str(config.engine), str(config.engine_url)
    model = connect(moe, engine=engine, url=url, fingerprint=fingerprint, folder=config.engine_folder)
    try:
        if blend is not None:
            model.merge(moe, blend)
    except BaseException:
        model.close()
        raise
    return model
