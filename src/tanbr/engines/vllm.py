"""vLLM's calls, by its documentation, its source and what a real one answers (`make engines`).

Adapters are loaded beside the base that it was started with. Whole models go through its development routes: it pauses,
reloads its weights from a folder and forgets its prefixes.
"""

import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from tanbr.engines.connection import ANSWER_SECONDS, LOAD_SECONDS, EngineLost, EngineRefused, load_seconds
from tanbr.engines.dialect import OURS, Dialect, Merge, Served
from tanbr.engines.merge_files import PREFIX
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.export import export
from tanbr.merge.sources.one_adapter import export_adapter, joinable
from tanbr.merge.sources.peft_folder import SETTINGS
from tanbr.moe.writing import write_json
from tanbr.serve.backends.torch_eager import rest

CHANGING = f"{OURS}changing"  # label while weights are being loaded: no merge has it
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
START = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora, --max-lora-rank and --max-loras"


class Vllm(Dialect):
    """vLLM 0.32, whatever it loads."""

    _model = ""  # that the engine was started with

    async def served(self) -> Served:
        """Ask /v1/models."""
        models = await self._ask("GET", "/v1/models")
        try:
            (card,) = [one for one in models["data"] if one.get("parent") is None]
            self._model = card["id"]
            return Served(str(card.get("root") or card["id"]), card.get("max_model_len"), *await self._numbers())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EngineRefused(f"{self.url} does not answer as vLLM does; is it one?") from None

    async def _numbers(self) -> tuple[str | None, ...]:
        """Ask for the dtype of its weights, and how they are quantised, where it says that."""
        return ()

    def text_body(self, text: str) -> dict[str, Any]:
        """Make the body of a call to /tokenize."""
        return {"model": self._model, "prompt": text}

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
            raise EngineRefused(f"the engine at {self.url} {must}") from None
        return said if isinstance(said, dict) else {}


class VllmWhole(Vllm):
    """vLLM that loads whole models, one at a time."""

    many: ClassVar[bool] = False

    @property
    def room(self) -> int:  # type: ignore[override]
        """Give the bytes of the dense model."""
        return sum(tensor.nbytes for tensor in self.moe.plan.specs.values())

    async def _numbers(self) -> tuple[str | None, ...]:
        config = (await self._ask("GET", "/server_info?config_format=json"))["vllm_config"]["model_config"]
        return str(config["dtype"]).removeprefix("torch."), config["quantization"]

    def write(self, merge: Merge, *, share: float) -> None:
        """Write a dense checkpoint."""
        started = time.perf_counter()

        def rested(done: int, total: int) -> None:  # noqa: ARG001 - of tensors
            nonlocal started
            self.moe.release()
            started = rest(started, share)

        export(self.moe, merge.blend, merge.folder, progress=rested)

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

    async def load(self, merge: Merge) -> None:
        """Pause, reload, forget the prefixes, and resume; the label is `CHANGING` until all of it is done."""
        await self._ask("POST", "/pause?mode=wait&clear_cache=true", seconds=LOAD_SECONDS)
        try:
            await self._ask("POST", "/update_weight_version", {"new_version": CHANGING})
            kwargs = {"weights_path": str(merge.folder), "is_checkpoint_format": True}
            call = {"method": "reload_weights", "kwargs": kwargs}
            await self._ask("POST", "/collective_rpc", call, seconds=load_seconds(merge.folder))
            if not (await self._ask("POST", "/reset_prefix_cache")).get("success", True):
                raise EngineRefused("the engine did not forget the prefixes of the old weights")
            await self._ask("POST", "/update_weight_version", {"new_version": merge.label})
        finally:  # safe after a failure: the label tells what the engine holds
            await self._ask("POST", "/resume")


class VllmAdapters(Vllm):
    """vLLM that keeps its base: each blend of adapters is loaded beside the base as one adapter.

    Every merge has a name of its own, and every request names the adapter: vLLM answers with that one or not at all.
    Its prefix cache goes by the adapter's name and folder, so that cached prefixes belong to the same weights. Loading
    other weights under the same name (`load_inplace`) would break that.
    """

    @staticmethod
    def check(moe: Moe) -> None:
        """Raise InputError if a blend is more than an adapter that vLLM takes."""
        if any(one.whole for one in joinable(moe).adapters):
            raise InputError("vLLM takes no adapters that hold modules in full (modules_to_save)")

    @property
    def room(self) -> int:  # type: ignore[override]
        """Give the bytes of an adapter that holds all experts, every module at the highest rank, in float32."""
        shapes = [next(iter(adds.values())).shape for adds in joinable(self.moe).factors.values()]
        return 4 * self._rank(self.moe.num_experts) * sum(map(sum, shapes))

    def _rank(self, most: int) -> int:
        """Give the highest rank that a blend of at most so many adapters has."""
        factors = joinable(self.moe).factors.values()
        return max(sum(sorted(one.down.shape[0] for one in adds.values())[-most:]) for adds in factors)

    def write(self, merge: Merge, *, share: float) -> None:
        """Write one adapter."""
        started = time.perf_counter()
        export_adapter(self.moe, merge.folder, blend=merge.blend, certify=False)
        self.moe.release()
        rest(started, share)

    async def fits(self, *, models: int, most: int) -> None:
        """Have it read an adapter's settings without weights, and its figures after one token of its base."""
        rank = self._rank(most)
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
        with TemporaryDirectory(prefix=PREFIX) as folder:
            Path(folder).chmod(0o755)
            write_json(Path(folder) / SETTINGS, settings)
            refusal = await self.refusal(LOAD, {"lora_name": f"{OURS}probe", "lora_path": folder})
        if refusal is not None and (
            refusal.status == 404 or "not enabled" in refusal.said or "max_lora_rank" in refusal.said
        ):
            raise EngineRefused(
                f"the engine takes no adapters of rank {rank}, which blends of these experts have ({refusal.said}); "
                f"{START}"
            )
        await self.ask("POST", "/v1/completions", {"model": self._model, "prompt": [0], "max_tokens": 1})
        found = re.search(r'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', await self.text("GET", "/metrics"), re.M)
        if found is not None and int(found[1]) < models:
            raise EngineRefused(
                f"the engine runs {found[1]} adapters at once, and a panel of {models} is to be served; start it with "
                f"--max-loras {models + 1}, so that the next one can be loaded, too"
            )

    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Name the adapter."""
        return {**body, "model": label}

    async def confirm(self, answer: Any, label: str) -> None:
        """Read the adapter's name."""
        if answer["model"] != label:
            raise EngineLost(f"{answer['model']} answers instead of {label}")

    async def held(self) -> Collection[str]:
        """Name the adapters that it has."""
        return list(await self._adapters())

    async def _adapters(self) -> dict[str, str]:
        """Ask which adapters it has: name → folder."""
        try:
            cards = (await self._ask("GET", "/v1/models"))["data"]
            return {str(card["id"]): str(card.get("root")) for card in cards if card.get("parent") is not None}
        except (KeyError, TypeError, AttributeError):
            raise EngineLost(f"{self.url} does not list its models as vLLM does") from None

    async def load(self, merge: Merge) -> None:
        """Load it under its own name, beside the others; first, unload what a server that was killed has left."""
        for name, place in (await self._adapters()).items():
            if name.startswith(OURS) and not Path(place).exists():
                await self._change(UNLOAD, {"lora_name": name}, seconds=LOAD_SECONDS)
        body = {"lora_name": merge.label, "lora_path": str(merge.folder)}
        await self._change(LOAD, body, seconds=load_seconds(merge.folder))

    async def unload(self, merge: Merge) -> None:
        """Unload it: vLLM 0.32 dies of an adapter that it has evicted and does not find again."""
        for name, place in (await self._adapters()).items():
            if place == str(merge.folder):  # the plugin may have given it another name
                await self._change(UNLOAD, {"lora_name": name}, seconds=LOAD_SECONDS)

    async def _change(self, path: str, body: dict[str, str], *, seconds: float) -> None:
        if refusal := await self.refusal(path, body, seconds=seconds):
            sentence = f"the engine does not take the adapter ({refusal.said}); {START} as needed"
            raise EngineRefused(sentence, status=refusal.status)
