"""How large an experiment is: `tiny` on the embedded models, `small` on small real ones, `paper` as published."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tanbr.errors import CheckpointError, ConfigError
from tanbr.lab.corpus import Corpus, Dataset, Rows, of_data
from tanbr.lab.methods import Bench
from tanbr.lab.settings import Config
from tanbr.lab.tasks import glue
from tanbr.lab.train.config import Tuning
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.tasks.rows import Task

K = 8  # experts, as in the paper


@dataclass(frozen=True)
class Scale:
    """Sizes of everything that has one."""

    name: str
    tuning: Tuning  # of norms: fig2, fig3, table2, fig7
    swept_seeds: tuple[int, ...]  # fig7
    served_slots: int  # after tuning: fig3, table2
    slots: int  # of learning online: fig4
    after: int  # further slots once learning is over
    requests: int
    pool: int  # most rows per task that requests are drawn from
    t5: Mapping[str, int]  # shape of a T5 with random weights, for times: table1
    length: int  # tokens of a timed text
    batches: tuple[int, ...]
    rounds: int  # of timings
    cell_seconds: float  # most time of one size of batch
    regret_slots: int  # theorem1
    seeds: tuple[int, ...] = (0, 1, 2)
    least_answers: int = 30  # of a task behind its metric; a correlation over fewer says nothing
    experts: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 192)  # fig6


_TINY = Scale(
    name="tiny",
    tuning=Tuning(steps=50, batch=32, train_rows=1_000, eval_rows=40, warmup=5, log_every=2, save_every=50,
                          rate=3e-3),
    swept_seeds=(0, 1), served_slots=24, slots=90, after=30, requests=48, pool=600,
    t5={"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 500}, length=32,
    batches=(1, 8, 128), rounds=3, cell_seconds=2.0, regret_slots=400,
)  # fmt: skip
_SMALL = Scale(
    name="small",
    tuning=Tuning(steps=40, batch=12, train_rows=4_000, eval_rows=16, max_length=64, log_every=1, warmup=5),
    swept_seeds=(0,), served_slots=12, slots=160, after=40, requests=64, pool=1_500,
    t5={"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 8, "vocab_size": 32_128}, length=128,
    batches=(1, 8, 32, 128), rounds=3, cell_seconds=8.0, regret_slots=2_000,
)  # fmt: skip
_PAPER = Scale(
    name="paper",
    tuning=Tuning(steps=10_000, batch=128, train_rows=1_000_000, eval_rows=10_000, max_length=128,
                          save_every=500),
    swept_seeds=(0, 1, 2), served_slots=500, slots=5_000, after=500, requests=128, pool=1_000_000,
    t5={"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32_128}, length=128,
    batches=(1, 8, 32, 128), rounds=7, cell_seconds=600.0, regret_slots=5_000,
)  # fmt: skip
NAMED: dict[str, Scale] = {"tiny": _TINY, "small": _SMALL, "paper": _PAPER}

WHERE = {
    "model": "--model names the folder of a BERT-MoE; make one with `tanbr pretrain --preset minilm`",
    "t5": "--t5 names the folder of a T5-MoE; make one with `tanbr pretrain --preset flan-t5`",
    "data": "--data names GLUE's folder (its eight tasks as TSV files, from gluebenchmark.com)",
}


def scale(name: str) -> Scale:
    """Find a scale by its name."""
    if name not in NAMED:
        raise ConfigError(f"unknown scale {name!r}; choose one of {', '.join(NAMED)}")
    return NAMED[name]


@dataclass(frozen=True)
class Setup:
    """A scale, and where its models and data are: embedded and generated if nothing is named, at `tiny` alone."""

    scale: Scale
    out: Path
    model: Path | None = None
    t5: Path | None = None
    data: Path | None = None
    tagged: bool = False  # whether the T5's texts name their task, as the paper's do

    def check(self, needs: tuple[str, ...], part: str) -> None:
        """Refuse a scale whose models or data are missing, or are others than it needs, before anything runs."""
        if self.tagged and self.embedded and self.t5 is None and "t5" in needs:
            raise ConfigError(
                f"{part} with --tagged needs a T5-MoE that knows the names of tasks, and the embedded one does not: "
                "name one with --t5"
            )
        for need in needs:
            if getattr(self, need) is None and not self.embedded:
                raise ConfigError(f"{part} at scale {self.scale.name} needs {need}: {WHERE[need]}")
        if "data" in needs:
            _ = self.corpus  # what is wrong with its files is said here
        if "t5" in needs and self.t5 is not None and not self.t5_moe.config.get("is_encoder_decoder"):
            raise CheckpointError(f"{self.t5} answers by a head, and {part} needs one that writes: {WHERE['t5']}")
        if "model" in needs and self.model is not None and self.bert_moe.config.get("is_encoder_decoder"):
            raise CheckpointError(f"{self.model} writes, and {part} needs a model with a head: {WHERE['model']}")

    @cached_property
    def corpus(self) -> Corpus:
        """The rows."""
        return of_data(self.data, pool=self.scale.pool)

    @property
    def embedded(self) -> bool:
        """Whether what is not named is embedded or generated."""
        return self.scale.name == "tiny"

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the rows; GLUE's where no data are named yet."""
        return glue.TASKS if self.data is None and not self.embedded else Dataset(self.data).tasks

    @property
    def data_name(self) -> str:
        """What the rows are called."""
        return "generated" if self.data is None else f"{Dataset(self.data).name} dev"

    def name_of(self, which: Literal["model", "t5"]) -> str:
        """Tell a model by its weights; nothing where none is named yet."""
        if getattr(self, which) is None and not self.embedded:
            return "none"
        return (self.bert_moe if which == "model" else self.t5_moe).fingerprint[:12]

    @cached_property
    def tuning_rows(self) -> tuple[Rows, Rows]:
        """Rows to tune on, and rows that no training has seen."""
        source = Dataset(self.data)
        return source.divided()[0], source.dev(limit=self.scale.tuning.eval_rows)

    @cached_property
    def bert_moe(self) -> Moe:
        """The model that answers by a head."""
        return open_moe(self.model or embedded.path())

    @cached_property
    def t5_moe(self) -> Moe:
        """The model that writes."""
        return open_moe(self.t5 or embedded.path("t5"))

    @cached_property
    def bench(self) -> Bench:
        """What all online methods share; answers are computed once."""
        return Bench(self.bert_moe, self.corpus, Config(), answers="labels")
