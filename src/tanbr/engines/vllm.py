"""vLLM: its OpenAI server generates, its development routes (VLLM_SERVER_DEV_MODE=1) change the weights."""

import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

from tanbr.engines.connection import ANSWER_SECONDS, LOAD_SECONDS, Connection, EngineLost, EngineStatus, load_seconds
from tanbr.engines.dense_file import DenseFile
from tanbr.engines.dialect import CHANGING, EngineRefused, Piece, Served
from tanbr.engines.merge_files import MergeFile
from tanbr.serve.decode import NotFinite
from tanbr.serve.sampling import Sampling

DEV_MODE = "the engine at {url} does not let its weights be changed; start vLLM with VLLM_SERVER_DEV_MODE=1"
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}  # whatever its defaults are


class NoDevMode(EngineRefused):
    """The routes that change weights are not there."""


class Vllm:
    """The calls of vLLM 0.32."""

    name: ClassVar[str] = "vllm"
    kind: ClassVar[type[MergeFile]] = DenseFile
    keeps_base: ClassVar[bool] = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._model = ""

    @property
    def _asked_for(self) -> str:
        """The model that answers."""
        return self._model

    async def served(self) -> Served:
        """Ask /v1/models, and /server_info for the dtype."""
        models = await self._get("/v1/models")
        try:
            (card,) = [one for one in models["data"] if one.get("parent") is None]
            self._model, positions = card["id"], card.get("max_model_len")
            return Served(str(card.get("root") or card["id"]), positions, *await self._numbers())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EngineRefused(f"{self._connection.url} does not answer as vLLM does; is it one?") from None

    async def _numbers(self) -> tuple[str | None, str | None]:
        """Ask in what dtype it computes, and how its weights are quantised."""
        config = (await self._config())["model_config"]
        return str(config["dtype"]).removeprefix("torch."), config["quantization"]

    async def _config(self) -> dict[str, Any]:
        """Ask how it was started."""
        config: dict[str, Any] = (await self._get("/server_info?config_format=json"))["vllm_config"]
        return config

    async def tokens(self, text: str) -> Sequence[int] | None:
        """Ask /tokenize."""
        try:
            return list((await self._connection.post("/tokenize", {"model": self._model, "prompt": text}))["tokens"])
        except (EngineStatus, KeyError, TypeError):  # an engine without a tokenizer
            return None

    async def label(self) -> str:
        """Ask /weight_info."""
        return str((await self._get("/weight_info")).get("weight_version"))

    async def load(self, folder: Path, label: str) -> None:
        """Pause, reload, forget the prefixes, and resume; the weights have no version until all is done."""
        await self._post("/pause?mode=wait&clear_cache=true", seconds=LOAD_SECONDS)
        try:
            await self._post("/update_weight_version", {"new_version": CHANGING})
            kwargs = {"weights_path": str(folder), "is_checkpoint_format": True}
            asked = {"method": "reload_weights", "kwargs": kwargs}
            await self._post("/collective_rpc", asked, seconds=load_seconds(folder))
            if not (await self._post("/reset_prefix_cache") or {}).get("success", True):
                raise EngineRefused("the engine did not forget the prefixes of the old weights")
            await self._post("/update_weight_version", {"new_version": label})
        finally:  # whatever it holds is known by its label, and nobody is answered under another
            await self._post("/resume")

    async def wake(self) -> None:
        """Resume."""
        if (await self._get("/is_paused")).get("is_paused"):
            await self._post("/resume")

    async def leave(self, folder: Path) -> None:
        """Do nothing: it has what it has loaded."""

    async def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Stream a completion, token by token."""
        asked = {"model": self._asked_for, "prompt": list(prompt), "max_tokens": limit, "stream": True}
        asked |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True, "stop_token_ids": sorted(ends), **GREEDY}
        if sampling is not None:
            asked |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
        try:
            async with aclosing(self._connection.events("/v1/completions", asked)) as events:
                async for event in events:
                    if "error" in event:
                        raise _broken_off(event["error"])
                    if event.get("choices"):
                        yield _piece(event["choices"][0])
        except EngineStatus as error:
            raise self._meant(error) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineLost(f"the engine streams what vLLM does not ({type(error).__name__}: {error})") from None

    async def _get(self, path: str) -> Any:
        try:
            return await self._connection.get(path)
        except EngineStatus as error:
            raise self._meant(error) from None

    async def _post(self, path: str, body: Any = None, *, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return await self._connection.post(path, body, seconds=seconds)
        except EngineStatus as error:
            raise self._meant(error) from None

    def _meant(self, error: EngineStatus) -> Exception:
        if error.status == 404 and error.path.startswith("/v1"):
            return EngineRefused(f"{self._connection.url} is no vLLM server ({error})")
        if error.status == 404:
            return NoDevMode(DEV_MODE.format(url=self._connection.url))
        return EngineRefused(str(error)) if error.status < 500 else EngineLost(str(error))


def _piece(choice: dict[str, Any]) -> Piece:
    tokens = tuple(choice["token_ids"] or ())
    said = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    if len(said) != len(tokens) or any(value is None or not math.isfinite(value) for value in said):
        raise NotFinite
    return Piece(tokens, tuple(said), choice.get("finish_reason"))


def _broken_off(error: Any) -> Exception:
    said = str(error.get("message", error) if isinstance(error, dict) else error)
    if "JSON compliant" in said:  # how Python refuses to write NaN
        return NotFinite()
    return EngineLost(f"the engine broke off: {said[:300]}")
