"""From a configuration that names an engine to the backend that talks to it."""

import os
from collections.abc import Callable, Sequence

from tanbr.errors import ConfigError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs
from tanbr.serve.backends import Builder
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


def connected(config: ServeConfig, moe: Moe, *, models: int, fingerprint: str) -> Remote | None:
    """Find the engine that a configuration names; None if it names none, an error if the rest does not go with it."""
    if config.engine is None and config.engine_url is not None:
        raise ConfigError("--engine-url needs --engine, which is vllm or sglang")
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
