"""How models are trained: what a user may set, and what the presets of `tanbr pretrain` fix beside that."""

from typing import Annotated, Literal

from pydantic import Field

from tanbr.config import Section

Rows = dict[str, Annotated[int, Field(ge=1)]]  # task name → rows of a step


class PretrainConfig(Section):
    """How a task-routed MoE is trained: one expert per task from a dense ancestor."""

    batch: int = Field(default=8, ge=1)
    """Rows of each task in a step."""
    task_rows: Rows = Field(default_factory=dict)
    """Rows of the tasks named here in a step, instead of `batch`."""
    ancestor_rows: Rows = Field(default_factory=dict)
    """Likewise while one dense model learns all tasks; as `task_rows` for the tasks not named here."""
    ancestor_steps: int = Field(default=2_000, ge=0)
    """Steps in which one dense model learns all tasks, before the experts part from it; 0 for none."""
    steps: int = Field(default=2_500, ge=1)
    """Steps in which each task trains its own expert."""
    frozen_layers: int = Field(default=0, ge=0)
    """The lowest layers of an encoder that stay the dense checkpoint's, and the embeddings with them."""
    mergeable: float = Field(default=0.0, ge=0, le=1)
    """Share of the experts' steps whose batches run through random blends of all experts around the task's own."""
    adapters: int = Field(default=0, ge=0)
    """Rank of LoRA adapters to train as experts, of a dense model that stays as it is; 0 trains FFNs."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers in which matrices are multiplied; bfloat16 halves the time on a processor that has it. Weights are kept
    in float32, and a state goes on with another precision."""
    seed: int = 0
    """Seed of initial weights, rows and batches."""
    device: str = "cpu"
    """Torch device to train on, as cuda; a state goes on with another one."""


class FinetuneConfig(Section):
    """How normalisation layers are tuned while a router learns (the paper: 10,000 steps of 128 rows, length 128)."""

    batch: int = Field(default=32, ge=1)
    """Rows of a step, drawn by the step's task mix."""
    steps: int = Field(default=300, ge=1)
    """Steps: one blend and one gradient step each."""
    seed: int = 0
    """Seed of rows, mixes and batches, and of the router or gates."""
    device: str = "cpu"
    """Torch device to tune on, as cuda; a state goes on with another one."""


class RunConfig(Section):
    """What every training run needs and nobody sets."""

    max_length: int = 64  # tokens of a text; what is longer is cut
    train_rows: int = 30_000  # most rows per task to draw batches from
    warmup: int = 200  # steps over which the rates rise to their full value
    log_every: int = 10  # steps whose mean loss is one entry of the curve
    save_every: int = 500  # steps between two resumable states; a multiple of `log_every`, so that entries are whole


class Preset(PretrainConfig, RunConfig):
    """The settings, and what goes with a model and its data: chosen beforehand, by judgement and training losses."""

    expert_rate: float = 2e-3  # learning rate of the experts, of what they share, of the head and its pooler
    shared_rate: float = 3e-4
    head_rate: float = 3e-4
    adapter_rate: float = 1e-3
    ancestor_rate: float = 1e-3  # constant after the warm-up where a checkpoint learns: the experts' fall from there
    train_embeddings: bool = True  # or they stay the ancestor's
    final_rows: int = 400  # rows per task that no training has seen, behind the figures in the end
    hidden_size: int = 96  # of an ancestor that is trained from nothing, as are the next three: width D
    layers: int = 3  # of its encoder; each holds one expert site
    heads: int = 4
    ffn_size: int = 192  # F, width of an expert's hidden layer


class Tuning(FinetuneConfig, RunConfig):
    """The settings of fine-tuning, and what goes with them."""

    train_rows: int = 4_000
    warmup: int = 20
    log_every: int = 5
    save_every: int = 50
    rate: float = 1e-3  # learning rate of the normalisation layers, and of the gates of rivals that have them
    eval_rows: int = 200  # rows per task behind the figures before and after


TINY = Preset()
"""Of `tanbr pretrain --preset tiny`, the embedded model with a head."""

TINY_T5 = Preset(
    hidden_size=80, layers=3, heads=4, ffn_size=96, ancestor_steps=700, ancestor_rate=2e-3, steps=1_500,
    expert_rate=2e-3, shared_rate=6e-4,
)  # fmt: skip
"""Of `tanbr pretrain --preset tiny-t5`, the embedded model that writes."""

MINILM = Preset(
    max_length=96, train_rows=60_000, ancestor_steps=250, steps=600, warmup=25, mergeable=0.3,
    ancestor_rows={"CoLA": 16, "SST-2": 12},
    task_rows={"CoLA": 32, "SST-2": 16, "MRPC": 6, "STS-B": 6, "QQP": 16, "MNLI": 28, "QNLI": 16, "RTE": 6},
    ancestor_rate=2e-4, expert_rate=2e-4, shared_rate=1e-4, head_rate=4e-4, train_embeddings=False, frozen_layers=2,
    log_every=5, save_every=25,
)  # fmt: skip
"""Of `tanbr pretrain --preset minilm`: about 45 core-minutes. On dev own experts have .717 on average, the even blend
.652; with `--mergeable 0` it is .722 and .629."""

FLAN_T5 = Preset(
    max_length=64, train_rows=20_000, ancestor_steps=110, steps=180, warmup=15,
    task_rows={"CoLA": 8, "SST-2": 4, "MRPC": 5, "STS-B": 6, "QQP": 8, "MNLI": 10, "QNLI": 8, "RTE": 5},
    ancestor_rate=5e-4, expert_rate=5e-4, shared_rate=2e-4, head_rate=4e-4, train_embeddings=False,
    log_every=5, save_every=25, final_rows=200,
)  # fmt: skip
"""Of `tanbr pretrain --preset flan-t5`: about 35 core-minutes. On dev own experts have .631 on average, the even blend
.436."""

PRESETS = {"tiny": TINY, "tiny-t5": TINY_T5, "minilm": MINILM, "flan-t5": FLAN_T5}
