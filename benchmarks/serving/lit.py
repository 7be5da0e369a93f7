"""The dense model behind LitServe; a module of its own, as LitServe's workers load it by name."""

import os
from pathlib import Path
from typing import Any

import litserve as ls

from serving.rivals import Model


class Api(ls.LitAPI):
    """Texts in, labels out, in batches."""

    folder: Path
    threads: int

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        """Load the model in the worker."""
        self.model = Model(self.folder, self.threads)

    def decode_request(self, request: dict[str, Any]) -> list[str]:
        """Take the texts out of a request."""
        return list(request["inputs"])

    def predict(self, inputs: list[list[str]]) -> list[list[dict[str, Any]]]:
        """Answer the texts of several requests together."""
        flat = self.model([text for one in inputs for text in one])
        parts, start = [], 0
        for one in inputs:
            parts.append(flat[start : start + len(one)])
            start += len(one)
        return parts

    def encode_response(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        """Put the answers into a response."""
        return {"outputs": output}


def run(folder: Path, port: int, threads: int) -> None:
    """Serve with as many workers as there are cores for, with so many threads each."""
    api = Api(max_batch_size=32, batch_timeout=0.002, api_path="/v1/classify")
    api.folder, api.threads = folder, threads
    cores = os.cpu_count() or 1
    server = ls.LitServer(api, accelerator="cpu", timeout=60, workers_per_device=max(1, cores // threads))
    server.run(host="127.0.0.1", port=port, num_api_servers=1, log_level="error", generate_client_file=False)
