"""From a configuration that names an engine to the backend that talks to it."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tanbr.engines.dialect import Dialect
from tanbr.engines.llamacpp import LlamaCpp
from tanbr.engines.merge_files import rank_of
from tanbr.engines.remote import Host, Remote
from tanbr.engines.vllm import START, Vllm, VllmAdapter
from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
from tanbr.merge.sources import OverBase
from tanbr.merge.sources.one_adapter import joinable
from tanbr.moe.text import TextEncoder
from tanbr.serve.backends import Builder
from tanbr.serve.config import ServeConfig
from tanbr.types import Blend

log = logging.getLogger("tanbr.serve")
TOKEN = "TANBR_ENGINE_TOKEN"  # noqa: S105 - the variable's name


def engine_builder(config: ServeConfig) -> Builder | None:
    """Make the builder of a backend for the engines that a configuration names; None if it names none.

    Raises ConfigError if the other settings do not go with it.
    """
    engine, urls = config.engine, config.engine_urls
    if engine is None:
        if urls:
            raise ConfigError("--engine-url needs --engine, which is one of vllm, llamacpp")
        return None
    if not urls:
        raise ConfigError(f"--engine {engine} needs --engine-url, the address at which it answers")
    if len(set(urls)) < len(urls):
        raise ConfigError("an engine is named once: two of the addresses after --engine-url are the same")
    if config.memory is not None:
        raise ConfigError("an engine's memory is its own; leave --memory out, and say with --models how many it holds")
    if config.backend not in ("auto", "torch"):
        raise ConfigError(f"an engine computes as it was started (got {config.backend}); leave --backend out")
    if config.precision != "auto":
        raise ConfigError(f"an engine computes as it was started (got {config.precision}); leave --precision out")
    if config.too_long != "refuse" or config.max_length is not None:
        raise ConfigError("an engine reads prompts by itself; leave too_long and max_length out")

    def build(moe: Moe, *, blend: Blend | None, models: int = 1, **_: Any) -> Remote:  # the rest is for models here
        most = 1 if config.unmerged else config.max_active or moe.num_experts
        remote = connect(moe, engine=engine, urls=urls, models=models, most=most, folder=config.engine_folder)
        try:
            remote.spares(models)  # enough engines, before one of them is sent anything
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
    urls: Sequence[str],
    models: int = 1,
    most: int | None = None,
    folder: str | None = None,
) -> Remote:
    """Find engines that run this model, for a panel of `models` that blend at most so many experts each.

    Raises if one is not there, runs another model, or was not started for such a panel.
    """
    dense = moe.plan.config().architectures[0]
    if not dense.endswith("ForCausalLM"):
        raise ConfigError(
            f"{engine} runs causal language models, and {moe.path} is merged to a {dense}; leave --engine out"
        )
    token, encode = os.environ.get(TOKEN), TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    hosts: list[Host] = []
    with ExitStack() as undo:
        for url in urls:
            dialect: Dialect = LlamaCpp(url, token=token) if engine == "llamacpp" else _vllm(moe, url, token)
            undo.callback(dialect.close)
            rank = rank_of(moe, most or moe.num_experts) if dialect.many else 0
            hosts.append(Host(moe, encode, dialect, models=models, rank=rank, folder=folder))
            undo.callback(hosts[-1].close)
        remote = Remote(hosts)
        undo.pop_all()
    return remote


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
