"""SGLang: its native routes. There is no build of it for CPUs: tested against its documented contract alone."""

import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

from tanbr.engines.connection import LOAD_SECONDS, Connection, EngineLost, EngineStatus
from tanbr.engines.dense_file import DenseFile
from tanbr.engines.dialect import EngineRefused, Piece, Served
from tanbr.engines.merge_files import MergeFile
from tanbr.serve.decode import NotFinite
from tanbr.serve.sampling import Sampling

GREEDY = {"temperature": 0, "top_p": 1, "top_k": 1, "min_p": 0, "repetition_penalty": 1}
SEEDS = 2**31  # that it knows; it heeds them where it was started with --enable-deterministic-inference


class Sglang:
    """The calls of SGLang's HTTP server."""

    name: ClassVar[str] = "sglang"
    kind: ClassVar[type[MergeFile]] = DenseFile
    keeps_base: ClassVar[bool] = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def served(self) -> Served:
        """Ask /get_model_info and /get_server_info."""
        model, server = await self._get("/get_model_info"), await self._get("/get_server_info")
        try:
            positions = server.get("context_length") or server.get("max_req_input_len")
            dtype = None if server.get("dtype") in (None, "auto") else str(server["dtype"]).removeprefix("torch.")
            return Served(str(model["model_path"]), positions, dtype, server.get("quantization"))
        except (KeyError, TypeError, AttributeError):
            raise EngineRefused(f"{self._connection.url} does not answer as SGLang does; is it one?") from None

    async def tokens(self, text: str) -> Sequence[int] | None:
        """Ask /tokenize."""
        try:
            return list((await self._connection.post("/tokenize", {"prompt": text}))["tokens"])
        except (EngineStatus, KeyError, TypeError):
            return None

    async def label(self) -> str:
        """Ask /get_model_info."""
        return str((await self._get("/get_model_info")).get("weight_version"))

    async def load(self, folder: Path, label: str) -> None:
        """Load in one call, which waits for what is being generated, flushes the cache and sets the version."""
        asked = {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        done = await self._post("/update_weights_from_disk", asked)
        if not done.get("success"):
            raise EngineRefused(f"the engine did not load the weights: {done.get('message')}")

    async def wake(self) -> None:
        """Do nothing: its loads pause by themselves."""

    async def leave(self, folder: Path) -> None:
        """Do nothing: it has what it has loaded."""

    async def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Stream an answer; every event holds all of it so far."""
        how = {"max_new_tokens": limit, "ignore_eos": True, "stop_token_ids": sorted(ends), **GREEDY}
        if sampling is not None:
            seed = sampling.seed % SEEDS
            how |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": -1, "sampling_seed": seed}
        asked = {"input_ids": list(prompt), "sampling_params": how, "stream": True, "return_logprob": True}
        have = 0
        try:
            async with aclosing(self._connection.events("/generate", asked)) as events:
                async for event in events:
                    if "error" in event:
                        raise EngineLost(f"the engine broke off: {str(event['error'])[:300]}")
                    meta = event["meta_info"]
                    said, total = meta["output_token_logprobs"], meta["completion_tokens"]
                    new = said[have:] if len(said) == total else said  # all so far, or what is new
                    have = total
                    yield _piece(new, meta.get("finish_reason"))
        except EngineStatus as error:
            raise _meant(error) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineLost(f"the engine streams what SGLang does not ({type(error).__name__}: {error})") from None

    async def _get(self, path: str) -> Any:
        try:
            return await self._connection.get(path)
        except EngineStatus as error:
            raise _meant(error) from None

    async def _post(self, path: str, body: Any) -> Any:
        try:
            return await self._connection.post(path, body, seconds=LOAD_SECONDS)
        except EngineStatus as error:
            raise _meant(error) from None


def _meant(error: EngineStatus) -> Exception:
    return EngineRefused(str(error)) if error.status < 500 else EngineLost(str(error))


def _piece(new: Sequence[Any], end: Any) -> Piece:
    if any(row[0] is None or not math.isfinite(row[0]) for row in new):
        raise NotFinite
    reason = end.get("type") if isinstance(end, dict) else end
    if reason == "abort":
        raise EngineLost("the engine gave the answer up")
    return Piece(tuple(int(row[1]) for row in new), tuple(float(row[0]) for row in new), reason)
