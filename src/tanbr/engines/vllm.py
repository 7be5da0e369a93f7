"""vLLM's calls, by its documentation, source and recorded replies (`tests/engines/vllm_recorded.json`).

Whole models go through its development routes: it pauses, reloads its weights from a folder and forgets its prefixes.
Adapters are loaded beside the base that it was started with.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from tanbr.engines.connection import ANSWER_SECONDS, LOAD_SECONDS, EngineLost, EngineRefused, load_seconds
from tanbr.engines.dialect import OURS, Dialect, Served
from tanbr.engines.merge_files import PREFIX, AdapterFile, DenseFile, MergeFile
from tanbr.merge.sources.peft_folder import SETTINGS
from tanbr.moe.writing import write_json

CHANGING = f"{OURS}changing"  # label while weights are being loaded: no version has it
INFO = "/server_info?config_format=json"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
START = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora, --max-lora-rank and --max-loras"


class NoDevMode(EngineRefused):
    """The routes that change weights are missing."""


class Vllm(Dialect):
    """vLLM 0.32 that loads whole models."""

    kind: ClassVar[type[MergeFile]] = DenseFile
    many: ClassVar[bool] = False

    def __init__(self, url: str, *, token: str | None = None, why_whole: str = "") -> None:
        """Take the engine's address; `why_whole` is added to what is said of one that takes no whole models."""
        super().__init__(url, token=token)
        self._why_whole = why_whole
        self._model = ""  # that the engine was started with

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

    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:  # noqa: ARG002 - it has one model
        """Name the engine's only model."""
        return {**body, "model": self._model}

    async def confirm(self, answer: Any, label: str) -> None:  # noqa: ARG002 - its name says nothing of its weights
        """Ask for the label."""
        (held,) = await self.held()
        if held != label:
            raise EngineLost(f"it holds {held} instead of {label}")

    async def held(self) -> Collection[str]:
        """Ask /weight_info."""
        return [str((await self._ask("GET", "/weight_info")).get("weight_version"))]

    async def load(self, merge: MergeFile, label: str) -> None:
        """Pause, reload, forget the prefixes, and resume; the label is `CHANGING` until all of it is done."""
        await self._ask("POST", "/pause?mode=wait&clear_cache=true", seconds=LOAD_SECONDS)
        try:
            await self._ask("POST", "/update_weight_version", {"new_version": CHANGING})
            kwargs = {"weights_path": str(merge.folder), "is_checkpoint_format": True}
            call = {"method": "reload_weights", "kwargs": kwargs}
            await self._ask("POST", "/collective_rpc", call, seconds=load_seconds(merge.folder))
            if not (await self._ask("POST", "/reset_prefix_cache")).get("success", True):
                raise EngineRefused("the engine did not forget the prefixes of the old weights")
            await self._ask("POST", "/update_weight_version", {"new_version": label})
        finally:  # safe after a failure: the label tells what the engine holds
            await self._ask("POST", "/resume")

    async def wake(self) -> None:
        """Resume."""
        if (await self._ask("GET", "/is_paused")).get("is_paused"):
            await self._ask("POST", "/resume")

    async def _ask(
        self, method: str, path: str, body: Any = None, *, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Ask for an object; an empty one if something else comes. Say what a route that is missing means."""
        try:
            said = await self.ask(method, path, body, seconds=seconds)
        except EngineRefused as error:
            if error.status != 404:
                raise
            if path.startswith("/v1"):
                raise EngineRefused(f"{self.url} is no vLLM server ({error})") from None
            must = "does not let its weights be changed; start vLLM with VLLM_SERVER_DEV_MODE=1"
            raise NoDevMode(f"the engine at {self.url} {must}{self._why_whole}") from None
        return said if isinstance(said, dict) else {}


class VllmAdapter(Vllm):
    """vLLM 0.32 that keeps its base: each blend of adapters is loaded beside the base as one adapter.

    Every load has a name of its own, and every request names the adapter: vLLM answers with that one or not at all.
    Its prefix cache goes by the adapter's name and folder, so that cached prefixes belong to the same weights. Loading
    other weights under the same name (`load_inplace`) would break that. Development routes are used if they are there.
    """

    kind: ClassVar[type[MergeFile]] = AdapterFile
    many: ClassVar[bool] = True

    def __init__(self, url: str, *, token: str | None = None) -> None:
        super().__init__(url, token=token)
        self._folders: dict[str, str] = {}  # label → where it was loaded from
        self._dev_mode = False

    async def takes_adapters(self) -> bool:
        """Ask whether adapters can be loaded while it runs."""
        refusal = await self.refusal(UNLOAD, {"lora_name": ""})
        return refusal is None or refusal.status != 404

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

    async def fits(self, *, models: int, rank: int) -> None:
        """Have it read an adapter's settings without weights, and its figures after one token of its base."""
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
        with TemporaryDirectory(prefix=PREFIX) as folder:
            Path(folder).chmod(0o755)
            write_json(Path(folder) / SETTINGS, settings)
            refusal = await self.refusal(LOAD, {"lora_name": f"{OURS}probe", "lora_path": folder})
        if refusal is not None and ("not enabled" in refusal.said or "max_lora_rank" in refusal.said):
            raise EngineRefused(
                f"the engine takes no adapters of rank {rank}, which blends of these experts have ({refusal.said}); "
                f"{START}"
            )
        await self.wake()
        await self.ask("POST", "/v1/completions", {"model": self._model, "prompt": [0], "max_tokens": 1})
        most = re.search(r'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', await self.text("GET", "/metrics"), re.M)
        if most is not None and int(most[1]) < models:
            raise EngineRefused(
                f"the engine runs {most[1]} adapters at once, and a panel of {models} is to be served; start it with "
                f"--max-loras {models + 1}, so that the next one can be loaded, too"
            )

    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Name the adapter."""
        return {**body, "model": label}

    async def confirm(self, answer: Any, label: str) -> None:
        """Read the adapter's name; where somebody could have loaded a whole model over the base, ask for that."""
        if answer["model"] != label:
            raise EngineLost(f"{answer['model']} answers instead of {label}")
        if whole := await self._whole_model():
            raise EngineLost(f"it holds {whole} in place of its base")

    async def held(self) -> Collection[str]:
        """Ask /v1/models for adapters over the base that were loaded from the folders they were written to."""
        if whole := await self._whole_model():
            return [f"{whole} in place of its base"]
        return [name for name, folder in (await self._adapters()).items() if self._folders.get(name) == folder]

    async def _adapters(self) -> dict[str, str]:
        """Ask which adapters it has: name → folder."""
        try:
            cards = (await self._ask("GET", "/v1/models"))["data"]
            return {str(card["id"]): str(card.get("root")) for card in cards if card.get("parent") is not None}
        except (KeyError, TypeError, AttributeError):
            raise EngineLost(f"{self.url} does not list its models as vLLM does") from None

    async def load(self, merge: MergeFile, label: str) -> None:
        """Load it under its own name, beside the others; first, unload what a server that was killed has left."""
        if whole := await self._whole_model():
            raise EngineRefused(f"somebody has loaded {whole} in place of the engine's base; start it again")
        for name, place in (await self._adapters()).items():
            if name.startswith(OURS) and not Path(place).exists():
                await self.unload(name)
        body: dict[str, object] = {"lora_name": label, "lora_path": str(merge.folder)}
        await self._change(LOAD, body, seconds=load_seconds(merge.folder))
        self._folders[label] = str(merge.folder)
        await self.wake()

    async def unload(self, label: str) -> None:
        """Unload it: vLLM 0.32 dies of an adapter that it has evicted and does not find again."""
        folder = self._folders.pop(label, None)
        for name, place in (await self._adapters()).items():
            if name == label or place == folder:  # the plugin may have given it another name
                await self._change(UNLOAD, {"lora_name": name}, seconds=LOAD_SECONDS)

    async def wake(self) -> None:
        """Resume, where it can have been paused."""
        if self._dev_mode:
            await super().wake()

    async def _whole_model(self) -> str:
        """Ask for the label of a whole model that was loaded over the base, if one was."""
        (label,) = await super().held() if self._dev_mode else ("",)
        return label if label.startswith(OURS) else ""

    async def _change(self, path: str, body: dict[str, object], *, seconds: float) -> None:
        if refusal := await self.refusal(path, body, seconds=seconds):
            said = "no such route" if refusal.said == "Not Found" else refusal.said
            sentence = f"the engine does not take the adapter ({said}); {START} as needed"
            raise EngineRefused(sentence, status=refusal.status)
