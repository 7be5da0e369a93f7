"""The same dense model behind LitServe, and behind the FastAPI handler that one writes first."""

import argparse
from pathlib import Path
from typing import Any

import torch

from tanbr.merge import open as open_moe
from tanbr.moe.text import TextEncoder


class Model:
    """The dense model and its tokenizer."""

    def __init__(self, folder: Path, threads: int, precision: str = "float32") -> None:
        torch.set_num_threads(threads)
        moe = open_moe(folder)
        self.model = moe.dense().to(getattr(torch, precision))
        self.encode = TextEncoder.of(folder, vocab_size=self.model.config.vocab_size)
        moe.checkpoint.release()
        self.names = [self.model.config.id2label[i] for i in range(self.model.config.num_labels)]

    @torch.inference_mode()
    def __call__(self, inputs: list[str]) -> list[dict[str, Any]]:
        """Answer texts as `tanbr serve` does."""
        scores = self.model(**self.encode(inputs)).logits.float().softmax(dim=-1)
        best = scores.argmax(dim=-1).tolist()
        return [
            {"label": self.names[i], "score": row[i], "scores": dict(zip(self.names, row, strict=True))}
            for i, row in zip(best, scores.tolist(), strict=True)
        ]


def plain(folder: Path, port: int, threads: int, precision: str) -> None:
    """A handler, a model, uvicorn."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Body(BaseModel):
        inputs: list[str]

    model, app = Model(folder, threads, precision), FastAPI()

    @app.post("/v1/classify")
    def classify(body: Body) -> dict[str, Any]:  # a plain function: FastAPI runs it in its pool of threads
        torch.set_num_threads(threads)
        return {"outputs": model(body.inputs)}

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ok"}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--precision")
    args = parser.parse_args()
    if args.kind == "plain":
        plain(args.folder, args.port, args.threads, args.precision)
    else:
        from serving.lit import run

        run(args.folder, args.port, args.threads)
