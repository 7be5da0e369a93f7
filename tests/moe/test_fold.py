from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families.gated import mean_mass, top_k_mass

GATE, NORM = "site.mlp.gate.weight", "site.post_attention_layernorm.weight"


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    (folder / "config.json").write_text('{"model_type": "qwen2_moe"}')
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


def test_a_router_that_prefers_none_gives_its_top_k_their_share(tmp_path: Path) -> None:
    even = checkpoint(tmp_path, **{GATE: torch.zeros(8, 4), NORM: torch.ones(4)})
    fold = top_k_mass(even, {"norm_topk_prob": False, "num_experts_per_tok": 2}, "site")
    assert fold.scale == pytest.approx(2 / 8)
    assert "mean top-k mass" in fold.reason


def test_a_bias_that_decides_alone_gives_all_mass_to_one(tmp_path: Path) -> None:
    bias = torch.tensor([1e4, 0.0, 0.0, 0.0])
    one = checkpoint(tmp_path, **{GATE: torch.zeros(4, 4), NORM: torch.ones(4), "bias": bias})
    assert mean_mass(one, router=GATE, norm=NORM, top_k=1, bias="bias") == 1.0
