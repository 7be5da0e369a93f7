"""From a configuration that names an engine to the backend that talks to it."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tanbr.engines.dialect import Dialect
from tanbr.engines.llamacpp import LlamaCpp
from tanbr.engines.remote import Host, Remote
from tanbr.engines.vllm import VllmAdapters, VllmWhole
from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
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
    for name, usual in (
        ("memory", None), ("backend", "auto"), ("precision", "auto"), ("too_long", "refuse"), ("max_length", None),
    ):  # fmt: skip
        if (given := getattr(config, name)) != usual:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"an engine computes as it was started (got {option} {given}); leave {option} out")

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
    kind, token = LlamaCpp if engine == "llamacpp" else _vllm(moe), os.environ.get(TOKEN)
    encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    hosts: list[Host] = []
    with ExitStack() as undo:
        for url in urls:
            dialect = kind(moe, url, token=token)
            undo.callback(dialect.close)
            hosts.append(Host(dialect, encode, models=models, most=most or moe.num_experts, folder=folder))
            undo.callback(hosts[-1].close)
        remote = Remote(hosts)
        undo.pop_all()
    return remote


def _vllm(moe: Moe) -> type[Dialect]:
    """Choose what vLLM is given: one adapter, if blends are no more than that, or whole models."""
    try:
        VllmAdapters.check(moe)
    except InputError as error:
        log.info("vLLM is sent whole models: no adapter can be sent (%s)", error)
        return VllmWhole
    return VllmAdapters
