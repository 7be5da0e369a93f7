"""vLLM: its OpenAI server writes. A blend is a whole model, or of adapters one adapter beside the base.

Whole models need the development routes (VLLM_SERVER_DEV_MODE=1), adapters need VLLM_ALLOW_RUNTIME_LORA_UPDATING.
"""

import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

from tanbr.engines.connection import ANSWER_SECONDS, LOAD_SECONDS, EngineError, EngineLost, EngineRefused, load_seconds
from tanbr.engines.dialect import OURS, Dialect, Piece, Served
from tanbr.engines.merge_files import AdapterFile, DenseFile, MergeFile
from tanbr.serve.decode import NotFinite
from tanbr.serve.sampling import Sampling

CHANGING = f"{OURS}changing"  # label while weights are being loaded: no version has it
INFO = "/server_info?config_format=json"
WRITE, LOAD, UNLOAD = "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}  # whatever its defaults are
START = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"


class NoDevMode(EngineRefused):
    """The routes that change weights are missing."""


class Vllm(Dialect):
    """vLLM 0.32 that loads whole models."""

    kind: ClassVar[type[MergeFile]] = DenseFile
    keeps_base: ClassVar[bool] = False

    def __init__(self, url: str, *, token: str | None = None, why_whole: str = "") -> None:
        """Take the engine's address; `why_whole` is added to what is said of one that takes no whole models."""
        super().__init__(url, token=token)
        self._why_whole = why_whole
        self._model = ""  # that the engine was started with
        self._adapter = ""  # that prompts name in its place, if there is one

    async def served(self) -> Served:
        """Ask /v1/models, and /server_info for the dtype."""
        models = await self._ask("GET", "/v1/models")
        try:
            (card,) = [one for one in models["data"] if one.get("parent") is None]
            self._model = card["id"]
            config = await self._started()
            numbers = () if config is None else (str(config["dtype"]).removeprefix("torch."), config["quantization"])
            return Served(str(card.get("root") or card["id"]), card.get("max_model_len"), *numbers)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EngineRefused(f"{self.url} does not answer as vLLM does; is it one?") from None

    async def _started(self) -> dict[str, Any] | None:
        """Ask how the engine was started: the model's configuration, None if it does not tell."""
        config: dict[str, Any] = (await self._ask("GET", INFO))["vllm_config"]["model_config"]
        return config

    def text_body(self, text: str) -> dict[str, Any]:
        """Make the body of a call to /tokenize."""
        return {"model": self._model, "prompt": text}

    async def label(self) -> str:
        """Ask /weight_info."""
        return str((await self._ask("GET", "/weight_info")).get("weight_version"))

    async def load(self, folder: Path, label: str) -> None:
        """Pause, reload, forget the prefixes, and resume; the label is `CHANGING` until all of it is done."""
        await self._ask("POST", "/pause?mode=wait&clear_cache=true", seconds=LOAD_SECONDS)
        try:
            await self._ask("POST", "/update_weight_version", {"new_version": CHANGING})
            kwargs = {"weights_path": str(folder), "is_checkpoint_format": True}
            call = {"method": "reload_weights", "kwargs": kwargs}
            await self._ask("POST", "/collective_rpc", call, seconds=load_seconds(folder))
            if not (await self._ask("POST", "/reset_prefix_cache")).get("success", True):
                raise EngineRefused("the engine did not forget the prefixes of the old weights")
            await self._ask("POST", "/update_weight_version", {"new_version": label})
        finally:  # safe after a failure: the label tells what the engine holds
            await self._ask("POST", "/resume")

    async def wake(self) -> None:
        """Resume."""
        if (await self._ask("GET", "/is_paused")).get("is_paused"):
            await self._ask("POST", "/resume")

    async def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Stream a completion, token by token."""
        asked = {"model": self._adapter or self._model, "prompt": list(prompt), "max_tokens": limit, "stream": True}
        asked |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True, "stop_token_ids": sorted(ends), **GREEDY}
        if sampling is not None:
            asked |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
        try:
            async with aclosing(self.events(WRITE, asked)) as events:
                async for event in events:
                    if "error" in event:
                        raise _broken_off(event["error"])
                    if event.get("choices"):
                        yield _piece(event["choices"][0])
        except EngineRefused as error:
            raise self._meaning(WRITE, error) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineLost(f"the engine streams what vLLM does not ({type(error).__name__}: {error})") from None

    async def _ask(
        self, method: str, path: str, body: Any = None, *, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Ask for an object; an empty one if something else comes."""
        try:
            said = await self.ask(method, path, body, seconds=seconds)
        except EngineRefused as error:
            raise self._meaning(path, error) from None
        return said if isinstance(said, dict) else {}

    def _meaning(self, path: str, error: EngineRefused) -> EngineError:
        """Say what a route that is missing means."""
        if error.status != 404:
            return error
        if path.startswith("/v1"):
            return EngineRefused(f"{self.url} is no vLLM server ({error})")
        said = f"the engine at {self.url} does not let its weights be changed; start vLLM with VLLM_SERVER_DEV_MODE=1"
        return NoDevMode(said + self._why_whole)


class VllmAdapter(Vllm):
    """vLLM 0.32 that keeps its base: a blend of adapters is loaded beside the base as one adapter.

    An adapter is named after its version, and every prompt names the adapter: vLLM answers with that one or not at all.
    Its prefix cache goes by the adapter's name and folder, so that cached prefixes belong to the same weights. Loading
    other weights under the same name (`load_inplace`) would break that. Development routes are used if they are there.
    """

    kind: ClassVar[type[MergeFile]] = AdapterFile
    keeps_base: ClassVar[bool] = True

    _folder = ""  # of the adapter that was loaded last
    _dev_mode = False

    async def takes_adapters(self) -> bool:
        """Ask whether adapters can be loaded while it runs."""
        try:
            await self.text("POST", UNLOAD, {"lora_name": ""})
        except EngineError as error:
            if error.status is None:
                raise
            return error.status != 404
        return True

    async def _started(self) -> dict[str, Any] | None:
        self._dev_mode = False
        try:
            config = (await self._ask("GET", INFO))["vllm_config"]
        except NoDevMode:
            return None
        self._dev_mode = True
        if only := (config.get("lora_config") or {}).get("target_modules"):
            raise EngineRefused(
                f"the engine adds adapters to some layers alone ({', '.join(only)}): half a blend would answer; "
                "start it without --lora-target-modules"
            )
        model: dict[str, Any] = config["model_config"]
        return model

    async def label(self) -> str:
        """Ask /v1/models for the adapter; it must be over the base, and loaded from the version's folder."""
        if whole := await self._whole_model():
            return f"{whole} in place of its base"
        held = await self._held()
        return self._adapter if held.get(self._adapter) == self._folder else f"the adapters ({', '.join(held)})"

    async def load(self, folder: Path, label: str) -> None:
        """Unload the version before, and load this one under its own name."""
        if whole := await self._whole_model():
            raise EngineRefused(f"somebody has loaded {whole} in place of the engine's base; start it again")
        for name in await self._held():
            if name.startswith(OURS):
                await self._change(UNLOAD, {"lora_name": name}, seconds=LOAD_SECONDS)
        await self._change(LOAD, {"lora_name": label, "lora_path": str(folder)}, seconds=load_seconds(folder))
        self._adapter, self._folder = label, str(folder)
        await self.wake()

    async def wake(self) -> None:
        """Resume, where it can have been paused."""
        if self._dev_mode:
            await super().wake()

    async def leave(self, folder: Path) -> None:
        """Unload what lies there: vLLM 0.32 dies of an adapter that it has evicted and does not find again."""
        for name, place in (await self._held()).items():
            if folder in Path(place).parents:
                await self._change(UNLOAD, {"lora_name": name}, seconds=LOAD_SECONDS)

    async def _whole_model(self) -> str:
        """Ask for the label of a whole model that was loaded over the base, if one was."""
        label = await super().label() if self._dev_mode else ""
        return label if label.startswith(OURS) else ""

    async def _held(self) -> dict[str, str]:
        """Ask which adapters it has: name → folder."""
        try:
            cards = (await self._ask("GET", "/v1/models"))["data"]
            return {str(card["id"]): str(card.get("root")) for card in cards if card.get("parent") is not None}
        except (KeyError, TypeError, AttributeError):
            raise EngineLost(f"{self.url} does not list its models as vLLM does") from None

    async def _change(self, path: str, body: dict[str, object], *, seconds: float) -> None:
        try:
            await self.text("POST", path, body, seconds=seconds)
        except EngineError as error:
            if error.status is None:
                raise
            said = "no such route" if error.said == "Not Found" else error.said
            raise EngineRefused(f"the engine does not take the adapter ({said}); {START} as needed") from None

    def _meaning(self, path: str, error: EngineRefused) -> EngineError:
        if error.status == 404 and path == WRITE:
            return EngineLost(f"it has no adapter {self._adapter}")
        return super()._meaning(path, error)


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
