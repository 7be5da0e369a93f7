"""Situation i of the paper: the normalisation layers of a merged model are tuned while a router learns to blend.

Every step is a slot: a labelled batch, a blend for its task mix, one gradient step of the norms through the merged
dense model, and the reward exp(−loss) per task. That is the paper's −loss, made to lie in [0, 1]: the (geometric) mean
probability of the right answer. Rivals that train gates run through the same steps on the un-merged model.

A router that learns wanders, and norms tuned to its wanderings are not those for what is served in the end. So norms
can also be tuned under draws around the blends that will be served, or in a merge that is always the same.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tanbr.lab.compare import Oracle
from tanbr.lab.gates import Gated, gates_of
from tanbr.lab.rivals.rules import proportional
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.objectives import Batch, Batches, Objective
from tanbr.lab.train.run import OnStep, Run
from tanbr.lab.world import Ready, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig, RewardConfig
from tanbr.loop.rewards import Tally
from tanbr.loop.turn import Learner, Rules, first, turn
from tanbr.merge import Moe
from tanbr.moe.layer import route
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import Blend, FloatArray

NEARNESS = 20.0  # concentration of a draw around a blend that will be served: deviations of at most √(¼ / 21) = .11
AT_ONCE = RewardConfig(settle_slots=0)  # a batch's reward is known when the batch is done
LEAST_CONCENTRATION = 0.1  # of every expert in a draw around a blend that will be served


class Tuner(nn.Module):
    """The norms of a dense model that is the same for every batch: a merge that is no blend. Its state is the norms."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.requires_grad_(False)
        self._model = (model,)  # in a tuple, where torch does not look for parameters
        self.norms = nn.ParameterList(norms(model).values())

    @property
    def model(self) -> Any:
        """The model that answers."""
        return self._model[0]

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Leave the gradients of a labelled batch; the rows' losses (n,)."""
        losses = objective.row_losses(self.model, batch)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    def choose(self, task_mix: ArrayLike) -> Blend | None:  # noqa: ARG002
        """Choose the blend (K,) for requests of a mix (V,); None where there is nothing to choose, or gates do."""
        return None

    def settle(self, blend: Blend | None) -> None:
        """Prepare the model to answer with a choice; only blends need it."""


class BlendTuner(Tuner):
    """A dense model into which an MoE's blends are merged."""

    def __init__(self, moe: Moe) -> None:
        super().__init__(moe.dense())
        self.moe = moe

    def settle(self, blend: Blend | None) -> None:
        """Merge a blend (K,) into the model; uniform if None."""
        self.moe.merge_into(self.model, self.moe.check(blend))


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


class MergedTuner(BlendTuner):
    """For every batch the blend of a router, which learns from the reward: a step is a turn of the loop.

    The batches are of `mixes` (steps, V), and the router is one that can be saved.
    """

    def __init__(self, moe: Moe, router: Any, mixes: FloatArray) -> None:
        super().__init__(moe)
        self.router, self._mixes, self._step = router, mixes, 0
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


class ServedTuner(BlendTuner):
    """For every batch a draw around a blend that will be served: by a coin the even one, or the mix's proportional one.

    `own` names each task's expert (V,). Every expert has a little of a draw's concentration, so that a blend of one
    expert has neighbours, too.
    """

    def __init__(self, moe: Moe, *, own: Sequence[int]) -> None:
        super().__init__(moe)
        self._own = list(own)

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:
        """Draw, merge, learn from the batch."""
        counts = task_counts(batch, tasks=len(objective.space.tasks))
        self.settle(self.draw(counts / counts.sum(), rng))
        return super().backward(batch, objective, rng)

    def draw(self, task_mix: FloatArray, rng: torch.Generator) -> Blend:
        """Draw a blend (K,) for a mix (V,)."""
        source = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        K = self.moe.num_experts
        centre = np.full(K, 1 / K) if source.random() < 0.5 else self.choose(task_mix)
        blend: Blend = source.dirichlet(NEARNESS * centre + LEAST_CONCENTRATION)
        return blend / blend.sum()

    def choose(self, task_mix: ArrayLike) -> Blend:
        """Give every expert the share of its tasks in the mix."""
        return proportional(task_mix, own=self._own, experts=self.moe.num_experts)


class GatedTuner(Tuner):
    """An un-merged model whose gates learn with its norms, and route it."""

    def __init__(self, gated: Gated) -> None:
        super().__init__(gated.model)
        self.gated = gated
        route(gated.model, gated.routing)
        self.gates = nn.ParameterList(gate.weight for gate in gates_of(gated.model))

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:
        """Let the gates' own loss teach gates and norms."""
        kept: list[Tensor] = []

        def row_losses() -> Tensor:
            kept.append(objective.row_losses(self.model, batch))
            return kept[0]

        self.gated.loss(objective.inputs(batch), row_losses, rng).backward()  # type: ignore[no-untyped-call]
        return kept[0].detach()


def task_counts(batch: Batch, *, tasks: int) -> FloatArray:
    """Count a batch's rows by task (V,)."""
    return np.bincount(batch.tasks.cpu().numpy(), minlength=tasks).astype(np.float64)


def rewards(losses: Tensor, batch: Batch, *, tasks: int) -> FloatArray:
    """Turn rows' losses (n,) into a reward per task (V,): exp(−mean loss), NaN for a task without rows."""
    of = batch.tasks.cpu()
    counts = torch.bincount(of, minlength=tasks)
    sums = torch.zeros(tasks, dtype=torch.float64).index_add(0, of, losses.cpu().double())
    result: FloatArray = torch.exp(-sums / counts).numpy()  # 0 / 0 is NaN
    return result


def norms(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the parameters of a model's normalisation layers."""
    return {
        f"{at}.{name}": weight
        for at, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        for name, weight in module.named_parameters(recurse=False)
    }


def finetune(
    tuner: Tuner,
    batches: Batches,
    mixes: FloatArray,
    *,
    objective: Objective,
    config: Tuning,
    state: Path,
    report: OnStep,
    origin: str = "",
) -> None:
    """Tune for as many steps as there are mixes (steps, V), one labelled batch of each; resumes from `state`.

    `origin` tells the checkpoint that is tuned from others.
    """
    tuner.requires_grad_(True)

    def gradients(step: int) -> dict[str, float]:
        batch = batches.mixed(step, mix=mixes[step], size=config.batch)
        rng = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        return {"batch": tuner.backward(batch, objective, rng).mean().item()}

    Run(
        phase="finetune",
        model=tuner,
        groups=[{"params": list(tuner.parameters()), "lr": config.rate}],
        gradients=gradients,
        steps=len(mixes),
        config=config,
        state=state,
        report=report,
        origin=origin,
        decay=0.0,  # norms belong near 1, not near 0
    ).train()
