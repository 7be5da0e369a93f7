"""A plugin of vLLM (entry point `vllm.general_plugins`): it asks tanbr at TANBR_URL for adapters called `tanbr-…`.

It runs in vLLM's environment, where tanbr has none of its dependencies: it needs the standard library and vLLM alone.
"""

import asyncio
import json
import logging
import os
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

log = logging.getLogger("vllm.tanbr")


def folder_of(url: str, name: str) -> str | None:
    """Ask tanbr where an adapter lies; None if it knows none of this name, or does not answer."""
    asked = Request(f"{url.rstrip('/')}/v1/adapters/{quote(name, safe='')}")  # noqa: S310 - the operator's own address
    if token := os.environ.get("TANBR_TOKEN"):
        asked.add_header("authorization", f"Bearer {token}")
    try:
        with urlopen(asked, timeout=5) as answer:  # noqa: S310
            return str(json.load(answer)["folder"])
    except (URLError, OSError, ValueError, KeyError) as error:
        log.warning("tanbr has no adapter %s (%s)", name, error)
        return None


def register() -> None:
    """Have vLLM ask, if TANBR_URL says where."""
    url = os.environ.get("TANBR_URL", "")
    if not url:
        return
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry  # type: ignore[import-not-found]

    class Resolver(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> object:  # noqa: ARG002
            folder = await asyncio.to_thread(folder_of, url, lora_name) if lora_name.startswith("tanbr-") else None
            return folder and LoRARequest(lora_name=lora_name, lora_int_id=1, lora_path=folder)  # vLLM sets the number

    LoRAResolverRegistry.register_resolver("tanbr", Resolver())
