"""How models are trained, and the presets of `tanbr pretrain`."""

from typing import Annotated

from pydantic import Field

from tanbr.config import Section


class RunConfig(Section):
    """What every training run needs."""

    max_length: int = Field(default=64, ge=8)
    """Longest text in tokens; what is longer is cut."""
    train_rows: int = Field(default=30_000, ge=1)
    """Most rows per task to draw batches from."""
    batch: int = Field(default=8, ge=1)
    """Rows of each task in a step."""
    steps: int = Field(default=2_500, ge=1)
    """Steps in which each task trains its own expert."""
    warmup: int = Field(default=200, ge=1)
    """Steps over which the rates rise to their full value, before they fall along half a cosine."""
    log_every: int = Field(default=10, ge=1)
    """Steps whose mean loss is one entry of the curve."""
    save_every: int = Field(default=500, ge=1)
    """Steps between two resumable states."""
    seed: int = 0
    """Seed of initial weights, rows and batches."""
    device: str = "cpu"
    """Torch device to train on, as cuda; a state goes on with another one."""


class PretrainConfig(RunConfig):
    """How a task-routed MoE is trained: one expert per task from a dense ancestor."""

    task_rows: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Rows of the tasks named here in a step, instead of `batch`."""
    ancestor_rows: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Likewise while one dense model learns all tasks; as `task_rows` for the tasks not named here."""
    frozen_layers: int = Field(default=0, ge=0)
    """The lowest layers of an encoder that stay the dense checkpoint's, and the embeddings with them."""
    mergeable: float = Field(default=0.0, ge=0, le=1)
    """Share of the experts' steps whose batches run through random blends of all experts around the task's own."""
    adapters: int = Field(default=0, ge=0)
    """Rank of LoRA adapters to train as experts, of a dense model that stays as it is; 0 trains FFNs."""
    adapter_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of adapters."""
    expert_rate: float = Field(default=2e-3, gt=0)
    """Learning rate of the experts."""
    shared_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of what the experts share: embeddings, attention, norms."""
    head_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of the classification head and what pools for it, and of gates."""
    train_embeddings: bool = True
    """Whether the embeddings learn with what is shared, or stay the ancestor's."""
    look_every: int = Field(default=0, ge=0)
    """Steps between two looks at each task's figure on held-out rows; 0 for none."""
    look_rows: int = Field(default=128, ge=2)
    """Held-out rows per task in a look."""
    patience: int = Field(default=4, ge=1)
    """Looks without a better figure after which a task keeps its best expert and leaves the training."""

    final_rows: int = Field(default=400, ge=2)
    """Rows a task of GLUE's dev that the trained model is scored on in the end."""

    hidden_size: int = Field(default=96, ge=8)
    """Width D of an ancestor that is trained from nothing (preset tiny), as are the next ones."""
    layers: int = Field(default=3, ge=1)
    """Its encoder layers; each holds one expert site."""
    heads: int = Field(default=4, ge=1)
    """Its attention heads per layer."""
    ffn_size: int = Field(default=192, ge=8)
    """Width F of an expert's hidden layer."""
    ancestor_steps: int = Field(default=2_000, ge=0)
    """Steps in which one dense model learns all tasks, before the experts part from it; 0 for none."""
    ancestor_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the ancestor. A checkpoint's keeps it after the warm-up: the experts' rates fall from there."""


class FinetuneConfig(RunConfig):
    """How normalisation layers are tuned while a router learns (the paper: 10,000 steps of 128 rows, length 128)."""

    train_rows: int = Field(default=4_000, ge=1)
    """Most rows per task to draw batches from."""
    batch: int = Field(default=32, ge=1)
    """Rows of a step, drawn by the step's task mix."""
    steps: int = Field(default=300, ge=1)
    """Steps: one blend and one gradient step each."""
    warmup: int = Field(default=20, ge=1)
    """Steps over which the rates rise to their full value, before they fall along half a cosine."""
    log_every: int = Field(default=5, ge=1)
    """Steps whose mean loss is one entry of the curve."""
    save_every: int = Field(default=50, ge=1)
    """Steps between two resumable states."""
    norm_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the normalisation layers."""
    gate_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the gates of rivals that have them."""
    alpha: float = Field(default=0.3, gt=0)
    """How even the steps' task mixes are, each a draw from Dirichlet(alpha)."""
    eval_rows: int = Field(default=200, ge=2)
    """Rows a task behind the figures before and after."""


TINY_T5 = PretrainConfig(
    hidden_size=80, layers=3, heads=4, ffn_size=96, ancestor_steps=700, ancestor_rate=2e-3, steps=1_500,
    expert_rate=2e-3, shared_rate=6e-4,
)  # fmt: skip
"""Of `tanbr pretrain --preset tiny-t5`, the embedded model that writes."""

MINILM = PretrainConfig(
    max_length=96, train_rows=60_000, ancestor_steps=250, steps=600, warmup=25, mergeable=0.3,
    ancestor_rows={"CoLA": 16, "SST-2": 12},
    task_rows={"CoLA": 32, "SST-2": 16, "MRPC": 6, "STS-B": 6, "QQP": 16, "MNLI": 28, "QNLI": 16, "RTE": 6},
    ancestor_rate=2e-4, expert_rate=2e-4, shared_rate=1e-4, head_rate=4e-4, train_embeddings=False, frozen_layers=2,
    log_every=5, look_every=125, look_rows=200, patience=4, save_every=25,
)  # fmt: skip
"""Of `tanbr pretrain --preset minilm`: about 45 core-minutes. On dev own experts have .717 on average, the even blend
.652; with `--mergeable 0` it is .722 and .629."""

FLAN_T5 = PretrainConfig(
    max_length=64, train_rows=20_000, ancestor_steps=110, steps=180, warmup=15,
    task_rows={"CoLA": 8, "SST-2": 4, "MRPC": 5, "STS-B": 6, "QQP": 8, "MNLI": 10, "QNLI": 8, "RTE": 5},
    ancestor_rate=5e-4, expert_rate=5e-4, shared_rate=2e-4, head_rate=4e-4, train_embeddings=False,
    log_every=5, save_every=25, final_rows=200,
)  # fmt: skip
"""Of `tanbr pretrain --preset flan-t5`: about 35 core-minutes. On dev own experts have .631 on average, the even blend
.436."""
