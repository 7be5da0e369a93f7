"""Engines of our own that keep vLLM's and llama.cpp's contracts over a real socket: transformers on a tiny model.

Like the real ones they remember prefixes: an answer to a prompt that was asked before is the old one, whatever the
weights are, until somebody has them forget it. The tests of real engines (`make engines`) ask the same things.
"""

import asyncio
import inspect
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.server import address_of, bind

MODEL = "dense"


class FakeVllm:
    """vLLM 0.32: a process that can be killed and started again; every start has the weights of its own folder."""

    development = ("/collective_rpc", "/server_info", "/pause", "/resume", "/weight_info", "/reset_prefix_cache")
    development += ("/update_weight_version",)

    def __init__(self, folder: Path) -> None:
        self.folder, self._port = folder, 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.dtype, self.positions, self.quantised = "float32", 64, None
        self.dev_mode = True
        self.slow = threading.Event()  # while it is set, only first tokens are written
        self.refuses = ""  # what it says to weights that it does not take
        self.busy = False  # whether it says that it cannot forget
        self.dies_loading = False
        self.hangs_loading = threading.Event()  # while it is set, weights are loaded
        self.nan = False  # whether weights that are loaded answer with NaN
        self.takes_adapters = False  # VLLM_ALLOW_RUNTIME_LORA_UPDATING
        self.most_rank = 16  # --max-lora-rank; 0: without --enable-lora
        self.most_adapters = 4  # --max-loras
        self.calls: list[str] = []
        self.asked: list[dict[str, Any]] = []  # how answers were to be written; they are greedy all the same
        self.keys: set[str | None] = set()
        self.traced: set[str | None] = set()
        self.loads = self.abandoned = 0
        self.routes: dict[str, Any] = {
            "/v1/models": self._models,
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._completions,
            "/metrics": lambda *_: Response(f'vllm:lora_requests_info{{max_lora="{self.most_adapters}"}} 1\n'),
            "/tokenize": lambda body, _: self._tokenized(body["prompt"]),
            "/server_info": self._server_info,
            "/weight_info": lambda *_: {"weight_version": self.label},
            "/update_weight_version": self._update_weight_version,
            "/collective_rpc": self._collective_rpc,
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/pause": self._pause,
            "/resume": self._pause,
            "/v1/load_lora_adapter": self._load_adapter,
            "/v1/unload_lora_adapter": self._unload_adapter,
        }

    def start(self) -> str:
        """Serve, with the folder's own weights; the URL."""
        self.label, self.paused, self.broken = "default", False, False
        self.cache: dict[tuple[int | str, ...], list[tuple[int, float]]] = {}
        self.adapters: dict[str, tuple[str, Any]] = {}  # name → its folder, and the model that has it
        self.model = AutoModelForCausalLM.from_pretrained(self.folder).eval()
        taken = bind(HttpConfig(port=self._port))
        self.url = address_of(taken)[0]
        self._port = int(self.url.rpartition(":")[2])
        app = FastAPI()
        app.add_api_route("/{path:path}", self._answered, methods=["GET", "POST"])
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [taken]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self.url

    def kill(self) -> None:
        """End, with all that is being answered."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[Self]:
        self.start()
        try:
            yield self
        finally:
            self.slow.clear()
            self.hangs_loading.clear()
            self.kill()

    async def _answered(self, request: Request) -> Response:
        path = request.url.path
        self.calls.append(path)
        self.keys.add(request.headers.get("authorization"))
        self.traced.add(request.headers.get("traceparent"))
        route = self.routes.get(path)
        if route is None or self.hides(path):
            return JSONResponse({"detail": "Not Found"}, 404)
        text = await request.body()
        said = route(json.loads(text) if text else None, request)
        said = await said if inspect.isawaitable(said) else said
        return said if isinstance(said, Response) else JSONResponse(said)

    def hides(self, path: str) -> bool:
        """Whether it was not started with this route."""
        if path.endswith("_lora_adapter"):
            return not self.takes_adapters
        return path in self.development and not self.dev_mode

    async def die(self) -> None:
        """End in the middle of a call."""
        self._server.should_exit = self._server.force_exit = True
        await asyncio.sleep(60)

    def load(self, folder: str, adapter: str = "") -> None:
        """Take the weights of a checkpoint; everything must be there, and nothing else. Or an adapter of that name."""
        if adapter:
            base = AutoModelForCausalLM.from_pretrained(self.folder)
            self.adapters[adapter] = folder, PeftModel.from_pretrained(base, folder).eval()
        else:
            self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.broken = self.nan
        self.loads += 1

    async def write(
        self, prompt: list[int], limit: int, ends: list[int], adapter: str = ""
    ) -> AsyncIterator[tuple[int, float, str | None]]:
        """Go on from a prompt greedily: token, its logprob, and how it ended if it did."""
        model = self.adapters[adapter][1] if adapter else self.model
        key = (adapter, *prompt)
        known, remembered, ended = self.cache.get(key, []), [], False
        try:
            while not ended:
                step = len(remembered)
                while self.paused or (step and self.slow.is_set()):
                    await asyncio.sleep(0.005)
                written = [one for one, _ in remembered]
                token, chance = known[step] if step < len(known) else self.next(prompt, written, model)
                remembered.append((token, chance))
                end = "stop" if token in ends else "length" if step == limit - 1 else None
                ended = end is not None
                yield token, chance, end
                await asyncio.sleep(0)
        finally:
            self.abandoned += not ended
            if len(remembered) > len(known):
                self.cache[key] = remembered

    @torch.inference_mode()
    def next(self, prompt: list[int], written: list[int], model: Any) -> tuple[int, float]:
        """The likeliest token, and its logprob."""
        if self.broken:
            return 0, float("nan")
        chances = model(torch.tensor([prompt + written])).logits[0, -1].log_softmax(-1)
        best = int(chances.argmax())
        return best, float(chances[best])

    async def _load_adapter(self, body: Any, request: Request) -> Response:
        name, folder = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            return _error(f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput", 400)
        if self.dies_loading:
            await self.die()
        rank = json.loads(Path(folder, "adapter_config.json").read_text(encoding="utf-8"))["r"]
        wrong = f"LoRA rank {rank} is greater than max_lora_rank {self.most_rank}." if rank > self.most_rank else ""
        wrong = wrong if self.most_rank else "Call to add_lora method failed: LoRA is not enabled."
        if not wrong and not Path(folder, "adapter_model.safetensors").exists():
            wrong = f"{folder} doesn't contain tensors"
        if self.refuses or wrong:
            return _error(self.refuses or wrong, "InternalServerError", 500)
        self.load(folder, name)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, body: Any, request: Request) -> Response:
        name = body["lora_name"]
        if not name:
            return _error("'lora_name' needs to be provided to unload a LoRA adapter.", "InvalidUserInput", 400)
        if name not in self.adapters:
            return _error(f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404)
        del self.adapters[name]
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    def _models(self, body: Any, request: Request) -> Any:
        card = {"id": MODEL, "object": "model", "root": str(self.folder), "parent": None}
        card |= {"max_model_len": self.positions}
        more = [card | {"id": name, "root": one[0], "parent": MODEL} for name, one in self.adapters.items()]
        return {"object": "list", "data": [card, *more]}

    def _server_info(self, body: Any, request: Request) -> Any:
        config = {"model": str(self.folder), "dtype": f"torch.{self.dtype}", "quantization": self.quantised}
        return {"vllm_config": {"model_config": config}}

    def _tokenized(self, text: str) -> Any:
        return {"tokens": self.tokenizer(text)["input_ids"]}

    def _update_weight_version(self, body: Any, request: Request) -> Any:
        self.label = body["new_version"]
        return {"success": True}

    async def _collective_rpc(self, body: Any, request: Request) -> Response:
        assert body["method"] == "reload_weights"
        assert body["kwargs"]["is_checkpoint_format"] is True
        assert self.paused
        if self.dies_loading:
            await self.die()
        while self.hangs_loading.is_set():
            await asyncio.sleep(0.005)
        if self.refuses:
            return _error(self.refuses, "InternalServerError", 500)
        self.load(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    def _reset_prefix_cache(self, body: Any, request: Request) -> Any:
        if not self.busy:
            self.cache.clear()
        return {"success": not self.busy}

    def _pause(self, body: Any, request: Request) -> Any:
        assert request.url.path == "/resume" or request.query_params["mode"] == "wait"
        self.paused = request.url.path == "/pause"
        return {"status": "paused" if self.paused else "resumed"}

    async def _completions(self, body: Any, request: Request) -> Response:
        chat = request.url.path == "/v1/chat/completions"
        adapter = "" if body["model"] == MODEL else body["model"]
        if adapter and adapter not in self.adapters:
            return _error(f"The model `{adapter}` does not exist.", "NotFoundError", 404, param="model")
        said = " ".join(one["content"] for one in body["messages"]) if chat else body["prompt"]
        if not said:
            return _error("You must pass at least one prompt", "BadRequestError", 400)
        if body.get("max_tokens", 0) > self.positions:
            return _error("max_tokens cannot be greater than max_model_len", "BadRequestError", 400, param="max_tokens")
        self.asked.append(body)
        texts = said if isinstance(said, list) and not isinstance(said[0], int) else [said]
        tokens = [self.tokenizer(text)["input_ids"] if isinstance(text, str) else text for text in texts]
        rows = list(enumerate(prompt for prompt in tokens for _ in range(body.get("n") or 1)))
        head = {"id": "chatcmpl-1" if chat else "cmpl-1", "model": body["model"], "created": 1}
        head["object"] = "chat.completion" if chat else "text_completion"
        usage = {"prompt_tokens": sum(map(len, tokens)), "completion_tokens": len(rows) * body.get("max_tokens", 16)}

        def written(prompt: list[int]) -> AsyncIterator[tuple[int, float, str | None]]:
            return self.write(prompt, body.get("max_tokens", 16), body.get("stop_token_ids", [1]), adapter)

        if not body.get("stream"):
            whole = []
            for index, prompt in rows:
                ids, chances, ends = zip(*[row async for row in written(prompt)], strict=True)
                if body.get("logprobs") is not None and any(chance != chance for chance in chances):
                    return _error("Out of range float values are not JSON compliant: nan", "BadRequestError", 400)
                whole.append(self._choice(index, ids, chances, ends[-1], body, chat=chat))
            return JSONResponse(head | {"choices": whole, "usage": usage})

        async def events() -> AsyncIterator[bytes]:
            for index, prompt in rows:
                async for token, chance, end in written(prompt):
                    choice = self._choice(index, [token], [chance], end, body, chat=chat, piece=True)
                    yield b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n"
            if (body.get("stream_options") or {}).get("include_usage"):
                yield b"data: " + json.dumps(head | {"choices": [], "usage": usage}).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _choice(
        self, index: int, tokens: Sequence[int], chances: Sequence[float], end: str | None, body: Any, *, chat: bool,
        piece: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        text = " " + text if piece and text else text
        said = {"delta" if piece else "message": {"role": "assistant", "content": text}} if chat else {"text": text}
        values = [None if chance != chance else chance for chance in chances]
        rows = {"content": [{"logprob": one} for one in values]} if chat else {"token_logprobs": values}
        logprobs = None if body.get("logprobs") is None else rows
        return {"index": index, "finish_reason": end, "logprobs": logprobs, "token_ids": tokens, **said}


def _error(said: str, kind: str, status: int, *, param: str | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": said, "type": kind, "param": param, "code": status}}, status)


class FakeLlamaCpp(FakeVllm):
    """llama-server with the adapters of a source, as `test_real_llamacpp.py` has met it."""

    def __init__(self, folder: Path, experts: list[str]) -> None:
        super().__init__(folder)
        self.experts = experts
        self.routes = {
            "/props": self._props,
            "/tokenize": lambda body, _: self._tokenized(body["content"]),
            "/lora-adapters": self._adapters,
            "/v1/completions": self._completions,
        }

    def _props(self, body: Any, request: Request) -> Any:
        return {"model_path": "base.gguf", "default_generation_settings": {"n_ctx": self.positions}}

    def _adapters(self, body: Any, request: Request) -> Any:
        return [{"id": k, "path": f"{path}.gguf", "scale": 1.0} for k, path in enumerate(self.experts)]

    async def _completions(self, body: Any, request: Request) -> Response:
        assert not body["cache_prompt"]  # its cache goes by tokens alone
        self.model = scaled_as_llamacpp(self.folder, self.experts, [one["scale"] for one in body["lora"]])
        self.cache.clear()
        return await super()._completions({**body, "model": MODEL}, request)


def scaled_as_llamacpp(folder: Path, experts: list[str], scales: list[float]) -> Any:
    """The base with every adapter at scale · α / r, whatever else PEFT would make of its settings."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    weights = model.state_dict()
    for path, scale in zip(experts, scales, strict=True):
        alpha = json.loads(Path(path, "adapter_config.json").read_text(encoding="utf-8"))["lora_alpha"]
        factors = load_file(Path(path, "adapter_model.safetensors"))
        for name, down in factors.items():
            if name.endswith(".lora_A.weight"):
                up = factors[name.replace("lora_A", "lora_B")]
                target = name.removeprefix("base_model.model.").replace(".lora_A", "")
                weights[target] += scale * alpha / len(down) * up @ down
    return model
