"""Situation i of the paper: the normalisation layers of a merged model are tuned while a router learns to blend.

Every step is a slot: a labelled batch, a blend for its mix, one gradient step of the norms, and the reward exp(−loss)
per task: the paper's −loss, made to lie in [0, 1]. Rivals that train gates run through the same steps un-merged.

In figures, `tags` answers each task by its own expert, `even` by what is chosen for an even mix, `own` for it alone.
"""

import copy
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tanbr.errors import ConfigError
from tanbr.files import write_atomically
from tanbr.lab.corpus import Progress, Rows
from tanbr.lab.gates import Gated, Reinforce, Smear, Switch
from tanbr.lab.oracle import Oracle
from tanbr.lab.rivals import ROUTERS, build
from tanbr.lab.train.checkpoints import Figures, as_trained, digest, load, own_experts, write
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.objectives import Batch, Batches, Objective, objective_of
from tanbr.lab.train.run import Run
from tanbr.lab.train.tuner import Tuner, norms
from tanbr.lab.world import Ready, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig, RewardConfig
from tanbr.loop.learner import Learner, Rules
from tanbr.loop.rewards import Tally
from tanbr.loop.turn import first, turn
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.methods import check_name
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.router.config import RouterConfig
from tanbr.serve.dense import with_start
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task
from tanbr.types import Blend, FloatArray, to_jsonable

AT_ONCE = RewardConfig(settle_slots=0)  # a batch's reward is known when the batch is done
AVERAGE = "average"  # how blends are merged, unless a name says otherwise, as average+regression does
GATES: dict[str, type[Gated]] = {"switch": Switch, "rl": Reinforce, "smear": Smear}
ALPHA = 0.3  # a step's task mix is a draw from Dirichlet(α): as even as the mixes of simulated traffic


class BatchWorld(StreamWorld):
    """A world whose slots are labelled batches: a slot's reward is what its batch's losses say."""

    def __init__(self, settle: Callable[[Blend], None], space: LabelSpace) -> None:
        super().__init__(lambda *_: [], space)
        self._settle, self._tasks = settle, len(space.tasks)
        self._earned: dict[int, Tally] = {}

    def earn(self, slot: int, reward: FloatArray, counts: FloatArray) -> None:
        """Take in the reward (V,) of the open slot's batch, NaN where a task has no rows, and the counts (V,)."""
        self._earned = {slot: Tally(self._tasks).add("labels", np.nan_to_num(reward) * counts, counts)}

    def measured(self, slot: int) -> dict[int, Tally]:
        """What a slot's batch has earned."""
        return {0: self._earned[slot]} if slot in self._earned else {}

    def commit(self, prepared: Sequence[Ready], learner: Learner) -> None:
        """Merge the blend that the next batch runs through."""
        super().commit(prepared, learner)
        self._settle(prepared[0].blend)


class MergedTuner(Tuner):
    """A dense model into which an MoE's blends are merged, by a router that learns from `mixes` (steps, V).

    A step is a turn of the loop.
    """

    def __init__(self, moe: Moe, router: Any, mixes: FloatArray) -> None:
        super().__init__(moe.dense())
        self.moe, self.router, self._mixes, self._step = moe, router, mixes, 0
        self._open: tuple[BatchWorld, Learner] | None = None  # where the loop is at

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:
        """Learn from a batch under the blend that was chosen for its mix, and turn the slot."""
        world, learner = self._open or self._begun(objective.space)
        losses = super().backward(batch, objective, rng)
        counts = task_counts(batch, tasks=len(objective.space.tasks))
        world.earn(learner.slot.number, rewards(losses, batch, tasks=len(counts)), counts)
        self._go_on(world, turn(learner, world))
        return losses

    def _go_on(self, world: BatchWorld, learner: Learner) -> tuple[BatchWorld, Learner]:
        self._open, self.router, self._step = (world, learner), learner.router, learner.slot.number
        return world, learner

    def _begun(self, space: LabelSpace) -> tuple[BatchWorld, Learner]:
        """Open the first slot, or the one that a saved router has chosen for."""
        world = BatchWorld(self.settle, space)
        source = Oracle(mixes=self._mixes)
        source.slot = self._step
        rules = Rules(LoopConfig(explore="always", rewards=AT_ONCE), StartBlend("even", experts=self.moe.num_experts))
        mix = self._mixes[min(self._step, len(self._mixes) - 1)]
        learner = first(
            rules, world, router=self.router, monitor=source, tasks=len(mix), number=self._step, mix=mix,
            decision=self.router.open[-1] if self.router.open else None,
        )  # fmt: skip
        return self._go_on(world, learner)

    def choose(self, task_mix: ArrayLike) -> Blend:
        """Ask the router; it is told nothing."""
        return self.router.fork().ask(task_mix).blend

    def settle(self, blend: Blend | None) -> None:
        """Merge a blend (K,) into the model; uniform if None."""
        self.moe.merge_into(self.model, self.moe.check(blend))

    def get_extra_state(self) -> Tensor:
        """Give the step and the router's saved state as bytes, so that model and router are saved in one file."""
        with tempfile.TemporaryDirectory() as folder:
            self.router.save(Path(folder) / "router")
            saved = self._step.to_bytes(8, "little") + (Path(folder) / "router").read_bytes()
            return torch.frombuffer(bytearray(saved), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Resume the router from its bytes."""
        with tempfile.TemporaryDirectory() as folder:
            path, saved = Path(folder) / "router", state.numpy().tobytes()
            path.write_bytes(saved[8:])
            self.router = type(self.router).load(path)
        self._step, self._open = int.from_bytes(saved[:8], "little"), None


def task_counts(batch: Batch, *, tasks: int) -> FloatArray:
    """Count a batch's rows by task (V,)."""
    return np.bincount(batch.tasks.cpu().numpy(), minlength=tasks).astype(np.float64)


def rewards(losses: Tensor, batch: Batch, *, tasks: int) -> FloatArray:
    """Turn rows' losses (n,) into a reward per task (V,): exp(−mean loss), NaN for a task without rows."""
    sums = torch.zeros(tasks, dtype=torch.float64).index_add(0, batch.tasks.cpu(), losses.cpu().double())
    result: FloatArray = torch.exp(-sums / torch.from_numpy(task_counts(batch, tasks=tasks))).numpy()  # 0 / 0 is NaN
    return result


def check(router: str) -> str:
    """Refuse a router that is not known."""
    name, _, method = router.partition("+")
    if name not in (*ROUTERS, *GATES):
        raise ConfigError(f"unknown router {router!r}; choose one of {', '.join((*ROUTERS, *GATES))}")
    if router != name and name in GATES:
        raise ConfigError(f"router {router!r}: a merge method may follow {', '.join(ROUTERS)}, none else")
    check_name(method or AVERAGE)
    return router


def untuned(
    checkpoint: Path, *, tasks: tuple[Task, ...], unseen: Rows, tuning: Tuning, tagged: bool = False
) -> dict[str, Figures]:
    """Measure the MoE with tags and the uniform merge, both as they are."""
    objective = _objective(load(checkpoint).config, checkpoint, tasks, tuning, tagged=tagged)
    return as_trained(checkpoint, objective, _few(unseen, tasks, tuning.eval_rows), device=tuning.device)


def run(
    checkpoint: Path,
    router: str,
    *,
    tasks: tuple[Task, ...],
    rows: Rows,
    unseen: Rows,
    tuning: Tuning,
    choosing: RouterConfig,
    out: Path,
    report: Progress,
    command: str,
    tagged: bool = False,
    also: Callable[[Tuner, Objective], Any] | None = None,
) -> dict[str, Any]:
    """Tune norms on `rows` while a router or gates learn, measure on `unseen`, and `also`; all goes to `out`/router."""
    folder, V = out / check(router), len(tasks)
    mixes = np.random.default_rng(tuning.seed).dirichlet(np.full(V, ALPHA), tuning.steps)
    tuner = _tuner(checkpoint, router, tasks=tasks, mixes=mixes, tuning=tuning, choosing=choosing)
    device = with_start(tuner.model).device
    objective = _objective(tuner.model.config, checkpoint, tasks, tuning, tagged=tagged)
    batches = Batches(_few(rows, tasks, tuning.train_rows), objective=objective, seed=tuning.seed, device=device)
    measured = _few(unseen, tasks, tuning.eval_rows)
    before = copy.deepcopy(tuner.norms.state_dict())
    folder.mkdir(parents=True, exist_ok=True)
    ticks: list[float] = []

    def ticked(phase: str, done: int, total: int, note: str) -> None:
        ticks.append(time.process_time())
        report(f"{phase} {router}", done, total, note)

    def gradients(step: int) -> dict[str, float]:
        batch = batches.mixed(step, mix=mixes[step], size=tuning.batch)
        rng = torch.Generator().manual_seed(tuning.seed * 1_000_003 + step)
        return {"batch": tuner.backward(batch, objective, rng).mean().item()}

    Run(
        phase="finetune", model=tuner, groups=[{"params": list(tuner.parameters()), "lr": tuning.rate}],
        gradients=gradients, steps=tuning.steps, config=tuning, state=folder / "tuned.state", report=ticked,
        origin=digest(checkpoint), decay=0.0,  # norms belong near 1, not near 0
    ).train()  # fmt: skip
    more = {} if also is None else {"also": also(tuner, objective)}
    report(f"figures {router}", 0, 1, "")
    blends = [tuner.choose(mix) for mix in (np.full(V, 1 / V), *np.eye(V))]
    figures = {f"tuned {kind}": value for kind, value in _measure(tuner, objective, measured, blends).items()}
    tuned = copy.deepcopy(tuner.norms.state_dict())
    tuner.norms.load_state_dict(before)
    figures |= {f"untuned {kind}": value for kind, value in _measure(tuner, objective, measured, blends).items()}
    tuner.norms.load_state_dict(tuned)
    report(f"figures {router}", 1, 1, "")
    _write(tuner, checkpoint, folder)
    result = {
        "command": command,
        "router": router,
        "config": tuning.model_dump(),
        "router_config": choosing.model_dump(mode="json", exclude_defaults=True),
        "cpu_seconds_per_step": float(np.median(np.diff(ticks))) if len(ticks) > 1 else None,
        "rows_a_task": tuning.eval_rows,
        "blends": blends,
        "figures": figures,
        **more,
    }
    write_atomically(folder / "finetune.json", json.dumps(to_jsonable(result), indent=1) + "\n")
    return result


def _few(rows: Rows, tasks: Sequence[Task], count: int) -> Rows:
    return {task.name: rows[task.name][:count] for task in tasks}


def _objective(config: Any, checkpoint: Path, tasks: tuple[Task, ...], tuning: Tuning, *, tagged: bool) -> Objective:
    encoder = TextEncoder.of(checkpoint, vocab_size=config.vocab_size, max_length=tuning.max_length)
    return objective_of(config, LabelSpace(tasks), encoder, tagged=tagged)


def _tuner(
    checkpoint: Path, router: str, *, tasks: tuple[Task, ...], mixes: FloatArray, tuning: Tuning, choosing: RouterConfig
) -> Tuner:
    """Build what is tuned."""
    name, _, method = router.partition("+")
    if name in GATES:
        return GATES[name](load(checkpoint).to(device_of(tuning.device)), seed=tuning.seed)
    moe = open_moe(checkpoint, method=method or AVERAGE, device=tuning.device)
    settings = choosing.of_requests(own_experts(moe, [task.name for task in tasks]))
    return MergedTuner(moe, build(name, moe.num_experts, len(tasks), seed=tuning.seed, config=settings), mixes)


def _measure(tuner: Tuner, objective: Objective, rows: Rows, blends: Sequence[Blend | None]) -> dict[str, Figures]:
    """Score all tasks with the first blend, and each with its own of the others."""
    tuner.settle(blends[0])
    even = objective.figures(tuner.model, rows)
    if not isinstance(tuner, MergedTuner):  # gates do not depend on the mix
        return {"even": even, "own": even}
    own: Figures = {}
    for blend, (name, of_task) in zip(blends[1:], rows.items(), strict=True):
        tuner.settle(blend)
        own |= objective.figures(tuner.model, {name: of_task})
    return {"even": even, "own": own}


def _write(tuner: Tuner, checkpoint: Path, folder: Path) -> None:
    """Write the MoE with its tuned norms (and gates), and the router that belongs to it."""
    if (folder / "model").exists():
        return
    moe = load(checkpoint)
    if isinstance(tuner, MergedTuner):
        moe.load_state_dict({name: weight.detach() for name, weight in norms(tuner.model).items()}, strict=False)
        tuner.router.save(folder / "router.state")
        write(moe, folder / "model", checkpoint, card=read_card(checkpoint))
    else:
        write(tuner.model, folder / "model", checkpoint)
