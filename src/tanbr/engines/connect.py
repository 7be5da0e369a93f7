"""From a configuration that names an engine to the backend that talks to it."""

import logging
import os
from typing import Any

from tanbr.engines.dialect import Dialect
from tanbr.engines.llamacpp import LlamaCpp
from tanbr.engines.remote import Remote
from tanbr.engines.vllm import START, Vllm, VllmAdapter
from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
from tanbr.merge.sources import OverBase
from tanbr.merge.sources.one_adapter import joinable
from tanbr.serve.backends import Builder
from tanbr.serve.config import ServeConfig
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")
TOKEN = "TANBR_ENGINE_TOKEN"  # noqa: S105 - the variable's name


def engine_builder(config: ServeConfig) -> Builder | None:
    """Make the builder of a backend for the engine that a configuration names; None if it names none.

    Raises ConfigError if the other settings do not go with it.
    """
    engine, url = config.engine, config.engine_url
    if engine is None:
        if url is not None:
            raise ConfigError("--engine-url needs --engine, which is one of vllm, llamacpp")
        return None
    if url is None:
        raise ConfigError(f"--engine {engine} needs --engine-url, the address at which it answers")
    if (config.models or 1) > 1 or config.memory is not None:
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


def connect(moe: Moe, *, engine: str, url: str, folder: str | None = None) -> Remote:
    """Find an engine that runs this model; raises if it is not there, or runs another one."""
    dense = moe.plan.config().architectures[0]
    if not dense.endswith("ForCausalLM"):
        raise ConfigError(
            f"{engine} runs causal language models, and {moe.path} is merged to a {dense}; leave --engine out"
        )
    token = os.environ.get(TOKEN)
    dialect: Dialect = LlamaCpp(url, token=token) if engine == "llamacpp" else _vllm(moe, url, token)
    try:
        return Remote(moe, dialect, folder=folder)
    except BaseException:
        dialect.close()
        raise


def _vllm(moe: Moe, url: str, token: str | None) -> Vllm:
    """Choose what vLLM is given: one adapter, if it takes such and blends are no more than that, or whole models.

    How vLLM was started says which: it takes adapters, or whole models, only where it was told to.
    """
    if not (isinstance(moe.source, OverBase) and moe.source.adapters):
        return Vllm(url, token=token)
    adapter, taken = VllmAdapter(url, token=token), False
    try:
        if any(one.whole for one in joinable(moe).adapters):
            raise InputError("vLLM takes no adapters that hold modules in full (modules_to_save)")
        if taken := adapter.call(adapter.takes_adapters()):
            return adapter
        why = f"or, since all experts are adapters, {START}"
    except InputError as error:
        why = f"no adapter can be sent: {error}"
    finally:
        if not taken:
            adapter.close()
    log.info("the engine is sent whole models (%s)", why)
    return Vllm(url, token=token, why_whole=f" ({why})")
