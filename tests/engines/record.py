"""Ask a real vLLM all that tanbr asks one, and write down what it says.

`python tests/engines/record.py URL FOLDER`: FOLDER is a dense checkpoint that the engine may load.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx2

FILE = Path(__file__).with_name("vllm_recorded.json")
WHOLE = {"max_tokens": 3, "logprobs": 1, "return_token_ids": True, "temperature": 0}
ASKED = WHOLE | {"stream": True}
READ = ("model", "dtype", "quantization", "max_model_len")  # of a long list


def exchanges(model: str, folder: str) -> list[tuple[str, str, Any]]:
    """Method, path and body of every call that the tests hold the fake engine to."""
    reload = {"method": "reload_weights", "kwargs": {"weights_path": folder, "is_checkpoint_format": True}}
    return [
        ("GET", "/v1/models", None),
        ("GET", "/server_info?config_format=json", None),
        ("POST", "/tokenize", {"model": model, "prompt": "w5 w6"}),
        ("POST", "/v1/completions", {"model": model, "prompt": [5, 6, 7], **ASKED}),
        ("POST", "/v1/completions", {"model": model, "prompt": ["w5 w6", "w7"], **WHOLE}),
        ("POST", "/v1/completions", {"model": "other", "prompt": [5, 6, 7], **ASKED}),
        ("POST", "/v1/completions", {"model": model, "prompt": [], **ASKED}),
        ("POST", "/pause?mode=wait&clear_cache=true", None),
        ("POST", "/update_weight_version", {"new_version": "one"}),
        ("POST", "/collective_rpc", reload),
        ("POST", "/reset_prefix_cache", None),
        ("GET", "/weight_info", None),
        ("POST", "/resume", None),
        ("GET", "/nothing", None),
    ]


def answered(http: httpx2.Client, method: str, path: str, body: Any) -> dict[str, Any]:
    """Ask; status and JSON, of a stream all events."""
    response = http.request(method, path, json=body)
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        return {
            "status": response.status_code,
            "events": [line if line == "[DONE]" else json.loads(line) for line in lines],
        }
    said = response.json() if response.content else None
    if path.startswith("/server_info") and response.status_code == 200:
        config = said["vllm_config"]["model_config"]
        said = {"vllm_config": {"model_config": {name: config[name] for name in READ if name in config}}}
    return {"status": response.status_code, "json": said}


def record(url: str, folder: str) -> list[dict[str, Any]]:
    with httpx2.Client(base_url=url, timeout=120) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
        asked = exchanges(model, folder)
        return [{"method": m, "path": p, "body": b, **answered(http, m, p, b)} for m, p, b in asked]


if __name__ == "__main__":
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, record(*sys.argv[1:]))) + "\n]\n", encoding="utf-8")
