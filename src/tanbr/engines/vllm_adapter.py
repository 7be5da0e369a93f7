"""vLLM that keeps its base: a blend of adapters is one adapter, loaded beside it (VLLM_ALLOW_RUNTIME_LORA_UPDATING).

An adapter is named after its version, and every prompt names the adapter: vLLM answers with that or not at all. Its
prefix cache goes by the adapter's name and folder, so that what it remembers is of the same weights. Other weights
under the same name (`load_inplace`) would break that: it would go on with the prefixes of the old ones, and read the
adapter anew at every step.
"""

from pathlib import Path
from typing import ClassVar

from tanbr.engines.adapter_file import AdapterFile
from tanbr.engines.connection import LOAD_SECONDS, Connection, EngineLost, EngineStatus, load_seconds
from tanbr.engines.dialect import OURS, EngineRefused
from tanbr.engines.merge_files import MergeFile
from tanbr.engines.vllm import NoDevMode, Vllm
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.sources.one_adapter import joinable

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
START = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"


class VllmAdapter(Vllm):
    """The calls of vLLM 0.32 for adapters. Development routes are not needed, but asked where they are."""

    kind: ClassVar[type[MergeFile]] = AdapterFile
    keeps_base: ClassVar[bool] = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._label = self._path = ""  # of the adapter that was loaded last
        self._develops = False

    @property
    def _asked_for(self) -> str:
        return self._label

    @staticmethod
    def check(moe: Moe) -> None:
        """Refuse experts whose blends are no adapter that it takes."""
        if any(adapter.whole for adapter in joinable(moe).adapters):
            raise InputError("vLLM takes no adapters that hold modules in full (modules_to_save)")

    async def takes(self) -> bool:
        """Whether it lets adapters be loaded at all."""
        try:
            await self._connection.post(UNLOAD, {"lora_name": ""}, plain=True)
        except EngineStatus as error:
            return error.status != 404
        return True

    async def _numbers(self) -> tuple[str | None, str | None]:
        try:
            numbers = await super()._numbers()
        except NoDevMode:
            numbers = None
        self._develops = numbers is not None
        if self._develops and (only := ((await self._config()).get("lora_config") or {}).get("target_modules")):
            raise EngineRefused(
                f"the engine adds adapters to some layers alone ({', '.join(only)}): half a blend would answer; "
                "start it without --lora-target-modules"
            )
        return numbers or (None, None)

    async def label(self) -> str:
        """Ask /v1/models for the adapter; it is the version only over the base, and read from the version's folder."""
        if base := await self._over():
            return f"{base} in place of its base"
        held = await self._held()
        return self._label if held.get(self._label) == self._path else f"the adapters ({', '.join(held)})"

    async def load(self, folder: Path, label: str) -> None:
        """Take the version before away, and load this one under its own name."""
        if base := await self._over():
            raise EngineRefused(f"somebody has loaded {base} in place of the engine's base; start it again")
        for name in await self._held():
            if name.startswith(OURS):
                await self._asked(UNLOAD, {"lora_name": name})
        await self._asked(LOAD, {"lora_name": label, "lora_path": str(folder)}, seconds=load_seconds(folder))
        self._label, self._path = label, str(folder)
        await self.wake()

    async def wake(self) -> None:
        """Resume, where it can have been paused."""
        if self._develops:
            await super().wake()

    async def leave(self, folder: Path) -> None:
        """Unload what lies there: vLLM 0.32 dies of an adapter that it has forgotten and does not find again."""
        for name, place in (await self._held()).items():
            if folder in Path(place).parents:
                await self._asked(UNLOAD, {"lora_name": name})

    async def _over(self) -> str:
        """Ask for the label of a whole model that was loaded over the base, if one was."""
        base = await super().label() if self._develops else ""
        return base if base.startswith(OURS) else ""

    async def _held(self) -> dict[str, str]:
        """Ask which adapters it has: name → folder."""
        try:
            cards = (await self._get("/v1/models"))["data"]
            return {str(card["id"]): str(card.get("root")) for card in cards if card.get("parent") is not None}
        except (KeyError, TypeError, AttributeError):
            raise EngineLost(f"{self._connection.url} does not list its models as vLLM does") from None

    async def _asked(self, path: str, body: dict[str, object], *, seconds: float = LOAD_SECONDS) -> None:
        try:
            await self._connection.post(path, body, seconds=seconds, plain=True)
        except EngineStatus as error:
            said = "no such route" if error.said == "Not Found" else error.said
            raise EngineRefused(f"the engine does not take the adapter ({said}); {START} as needed") from None

    def _meant(self, error: EngineStatus) -> Exception:
        if error.status == 404 and error.path == "/v1/completions":
            return EngineLost(f"it has no adapter {self._label}")
        return super()._meant(error)
