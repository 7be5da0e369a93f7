"""A Qwen3-MoE of 64 experts in eight families, made up but whole: written, opened, grouped, merged and run.

An expert is an ancestor, plus its family's difference, plus a small one of its own. Task v is to answer as family v
does: its reward is how near the merged model's logits come to those of that family's mean, from 0 (as far as another
family's) to 1. No real Qwen weights are used.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tanbr.grouping.by_weights import by_weights
from transformers import AutoConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

import tanbr
from suite.run import task_mixes
from tanbr.router import Tanbr
from tanbr.router.groups import Groups
from tanbr.types import FloatArray

K, FAMILIES, OWN = 64, 8, 0.35  # OWN: an expert's own difference, as a share of its family's
NOISE = 0.05


def write_qwen(folder: Path, *, seed: int = 0, layers: int = 2, width: int = 64) -> Path:
    """Write the checkpoint; expert k is of family k mod 8."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = {
        "vocab_size": 128, "hidden_size": width, "moe_intermediate_size": width, "intermediate_size": width,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width // 4,
        "num_experts": K, "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 128,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(AutoConfig.for_model("qwen3_moe", **settings)).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                values.normal_(std=0.15)
            if ".experts." in name:  # (K, …)
                family = torch.randn(FAMILIES, *values.shape[1:])
                ancestor = torch.randn(values.shape[1:])
                own = OWN * torch.randn(values.shape)
                values.copy_(0.12 * (1.5 * ancestor + family[torch.arange(K) % FAMILIES] + own))
    model.save_pretrained(folder)
    return folder


class Answering:
    """Merged models of a checkpoint, and how near they come to each family's mean."""

    def __init__(self, moe: Any) -> None:
        self._moe, self._model = moe, moe.dense()
        self._texts = torch.randint(0, 128, (8, 12), generator=torch.Generator().manual_seed(5))
        families = np.eye(FAMILIES)[np.arange(K) % FAMILIES].T / (K / FAMILIES)  # (8, K)
        self._wanted = torch.stack([self._logits(blend) for blend in families])
        apart = torch.cdist(self._wanted.flatten(1), self._wanted.flatten(1))
        self._scale = float(apart[~torch.eye(FAMILIES, dtype=torch.bool)].mean())
        self.families = families

    @torch.inference_mode()
    def _logits(self, blend: FloatArray) -> torch.Tensor:
        self._moe.merge_into(self._model, blend)
        return self._model(input_ids=self._texts).logits.double()

    def rewards(self, blend: FloatArray) -> FloatArray:
        """Reward of every task (8,)."""
        far = (self._logits(blend) - self._wanted).flatten(1).norm(dim=1) / self._scale
        return np.clip(1.0 - far.numpy(), 0.0, 1.0)


def study(*, seeds: int, slots: int) -> dict[str, Any]:
    """Group the experts by weights, and run both routers over real merges; mean reward, early and late."""
    runs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            moe = tanbr.open(write_qwen(Path(folder) / "qwen", seed=seed))
            start = time.process_time()
            found = by_weights(moe, into=FAMILIES)
            took = time.process_time() - start
            planted = Groups.by_labels((np.arange(K) % FAMILIES).tolist())
            right = set(map(frozenset, found.groups.members)) == set(map(frozenset, planted.members))
            answering = Answering(moe)
            mixes = task_mixes("switching", tasks=FAMILIES, slots=slots, rng=np.random.default_rng(seed))
            routers = {
                "plain": Tanbr(K, FAMILIES, seed=1000 + seed),
                "grouped": Tanbr(K, FAMILIES, groups=found.groups, seed=1000 + seed),
            }
            row = {"seed": seed, "families found": right, "grouping_cpu_seconds": took}
            row |= {"within": found.within, "between": found.between}
            even = answering.rewards(np.full(K, 1 / K))
            row |= {"even": float(np.mean(mixes @ even))}
            best = np.array([answering.rewards(blend) for blend in answering.families])
            row |= {"best single family": float(np.mean((mixes @ best.T).max(axis=1)))}
            for name, router in routers.items():
                rng, earned = np.random.default_rng(seed), []
                for mix in mixes:
                    decision = router.ask(mix)
                    rewards = answering.rewards(decision.blend)
                    earned.append(float(mix @ rewards))
                    router.tell(decision, np.clip(rewards + NOISE * rng.normal(size=FAMILIES), 0, 1))
                half = slots // 2
                row |= {f"{name}, first half": float(np.mean(earned[:half]))}
                row |= {f"{name}, second half": float(np.mean(earned[half:]))}
            runs.append(row)
            print(row, flush=True)
    keys = [key for key in runs[0] if key not in ("seed", "families found")]
    summary = {key: [float(np.mean([r[key] for r in runs])), float(np.std([r[key] for r in runs], ddof=1))]
               for key in keys}  # fmt: skip
    return {"runs": runs, "mean and deviation": summary}
