"""Several merged models side by side in one service, each request by the one that is best for its task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serve.serving import K, Ledger, Run, V, service, until
from tanbr.errors import ConfigError, InputError
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.serve.ids import place_of, slot_of
from tanbr.serve.panel import Panel
from tanbr.serve.records import Answered, Feedback, Phase, Reason
from tanbr.serve.service import Service
from tanbr.types import Decision, Terms

NAMES = [task.name for task in tiny.TASKS]
OWN = tuple(range(V))
TEXTS = {name: [row.text for row in tiny.generate(name, 4, seed=9, split="test")] for name in NAMES}
ALL = [text for name in NAMES for text in TEXTS[name]]


class PanelLedger(Ledger):
    """A ledger that chooses two blends when it is asked for several, and remembers what it was told of each."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[np.ndarray] = []

    def ask(self, task_mix: Any, *, models: int | None = None, confusion: Any = None) -> Any:
        if models is None:
            return super().ask(task_mix)
        rng = np.random.default_rng(self.asked)
        blends = rng.dirichlet(np.ones(K), models)
        estimates = np.eye(models)[np.arange(V) % models].T
        terms = (Terms(mean=0.5, uncertainty=0.1),) * models
        self.open.append(Decision(self.asked, np.asarray(task_mix), blends, estimates, terms=terms))
        self.asked += 1
        return self.open[-1]

    def tell(self, decision: Any, reward: Any, counts: Any = None) -> None:
        super().tell(decision, reward, counts)
        if len(decision.blends) > 1:
            self.tables.append(np.array(np.nan_to_num(reward)))


@pytest.fixture
def live(run: Run) -> Service:
    return run(router=PanelLedger(), own_experts=OWN, models=2, rewards={"settle_slots": 0})


def test_every_request_goes_to_the_model_of_its_task_and_its_reward_with_it(live: Service) -> None:
    answered = live.submit(ALL).result(30)
    first, second = (model.merge_version for model in live.state().models)
    tasks = [name for name in NAMES for _ in TEXTS[name]]
    to = {first: 0, second: 1}
    places = [to[version] for version in answered.merge_versions]
    right = sum(place == NAMES.index(task) % 2 for place, task in zip(places, tasks, strict=True))
    assert right > 0.7 * len(ALL)  # by recognition alone; two of a random half would be right
    receipt = live.feedback(
        [
            Feedback(name, reward=float(place), task=task)
            for name, place, task in zip(answered.request_ids, places, tasks, strict=True)
        ]
    )
    assert receipt.accepted == len(ALL)
    live.end_slot()
    router: Any = live.learner.router
    (table,) = router.tables
    assert not table[0].any()  # the first model earned nothing, the second all
    assert (table[1] > 0).any()
    assert router.told == len(ALL)
    last = live.state()
    assert last.counts.sum() == len(ALL)
    requests = {view.merge_version: view.requests for view in live.versions()}
    assert (requests[first], requests[second]) == (places.count(0), places.count(1))


def test_whatever_answers_while_a_panel_is_replaced_is_credited_to_itself(live: Service) -> None:
    """Ask during every merge of 15 turns that replace both models; the last merge of a turn is part of its commit."""
    engine, store = live.learning.world.engine, live.learning.world.store
    answers: list[Answered] = []
    unfit: list[Panel] = []
    merge = type(engine.live.backend).merge
    for backend in engine.backends:

        def asked(*arguments: Any, of: Any = backend, **named: Any) -> None:
            panel = engine.panel
            fits = panel.assignment and np.array_equal(
                panel.assignment.decision.blends, [one.blend for one in panel.models]
            )
            unfit.extend([] if fits else [panel])
            answers.append(live.submit(ALL).result(30))
            merge(of, *arguments, **named)

        backend.merge = asked  # type: ignore[method-assign]
    for _ in range(15):
        live.end_slot()
    served = {slot["slot"]: [model["version"] for model in slot["models"]] for slot in store.slots()}
    wrong = 0
    for answered in answers:
        versions = answered.merge_versions or (answered.merge_version,) * len(ALL)
        for shown, version in zip(answered.request_ids, versions, strict=True):
            raw = live.ids.read(shown)
            assert raw is not None
            wrong += served[slot_of(raw)][place_of(raw)] != version
    assert len(answers) == 3 * 15  # both blends are merged to be looked at, and the first of them again to answer
    assert (wrong, unfit) == (0, [])


def test_a_client_that_names_a_task_or_its_labels_is_believed(live: Service) -> None:
    versions = [model.merge_version for model in live.state().models]
    for place in (0, 1):
        named = live.submit(ALL, task=NAMES[place]).result(30)
        assert set(named.merge_versions or (named.merge_version,)) == {versions[place]}
    with pytest.raises(InputError, match="unknown task 'cooking'; this server knows"):
        live.submit(ALL, task="cooking")


def test_the_state_says_who_serves_what(live: Service) -> None:
    now = live.state()
    np.testing.assert_allclose(live.slots(1)[0].blend, sum(model.expected * model.blend for model in now.models))
    live.submit(ALL).result(30)
    assert [model.tasks for model in now.models] == [tuple(NAMES[0::2]), tuple(NAMES[1::2])]
    until(lambda: live.slots(1)[0].requests == len(ALL))
    shares = [model.requests / len(ALL) for model in live.state().models]
    np.testing.assert_allclose(live.slots(1)[0].blend, shares @ np.array([model.blend for model in now.models]))
    assert sum(model.expected for model in now.models) == pytest.approx(1.0, rel=1e-12)
    assert live.info.models == 2
    assert now.why is not None
    assert "these together" in now.why.sentence


def test_before_any_reward_groups_of_tasks_share_a_model_each(run: Run) -> None:
    one = run(router=None, own_experts=OWN, models=3, explore="careful")
    now = one.state()
    assert now.phase is Phase.WAITING
    assert sorted(name for model in now.models for name in model.tasks) == sorted(NAMES)
    for model in now.models:  # the experts of its own tasks, and no others
        assert [k for k in range(K) if model.blend[k] > 0] == sorted(NAMES.index(name) for name in model.tasks)


def test_a_model_that_answers_with_nan_leaves_its_requests_to_the_other(live: Service) -> None:
    broken, other = live.learning.world.engine.panel.models
    shared = {id(one) for one in other.backend.model.parameters()}  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in broken.backend.model.parameters():  # type: ignore[attr-defined]
            if id(parameter) not in shared:
                parameter.fill_(float("nan"))
                break
    answered = live.submit(ALL).result(30)
    assert np.isfinite(answered.logits).all()
    until(lambda: broken.version not in [model.merge_version for model in live.state().models])
    assert live.slots(1)[0].reason is Reason.ROLLED_BACK
    assert {view.merge_version: view.good for view in live.versions()}[broken.version] is False
    live.end_slot()
    assert len(live.state().models) == 2  # and the next slot has a panel again


def test_a_pin_and_a_rollback_serve_one_model_alone(live: Service) -> None:
    first = [model.merge_version for model in live.state().models]
    live.end_slot()
    second = [model.merge_version for model in live.state().models]
    assert live.rollback(first[1]) == first[1]
    assert [model.merge_version for model in live.state().models] == [first[1]]
    good = {view.merge_version: view.good for view in live.versions()}
    assert [good[version] for version in (*first, *second)] == [True, True, False, False]
    assert live.submit(ALL).result(30).merge_versions == ()
    live.pin(np.eye(K)[0])
    assert [model.blend.tolist() for model in live.state().models] == [np.eye(K)[0].tolist()]
    live.unpin()
    live.end_slot()
    assert len(live.state().models) == 2


@pytest.mark.parametrize("models", [1, 2, 3])
def test_a_restart_goes_on_with_its_panel_also_with_more_models_or_fewer(run: Run, models: int) -> None:
    one = run(router=PanelLedger(), own_experts=OWN, models=2)
    ids = one.submit(ALL).result(30).request_ids
    before = one.state()
    one.stop()
    again = run(router=PanelLedger(), own_experts=OWN, models=models)
    served = [model.merge_version for model in again.state().models]
    assert served == [model.merge_version for model in before.models]
    assert again.feedback([Feedback(name, reward=1.0, task=NAMES[0]) for name in ids]).accepted == len(ALL)
    again.submit(ALL).result(30)
    again.end_slot()
    again.end_slot()
    router: Any = again.learner.router
    assert router.told == len(ALL)
    assert len(again.state().models) == models


def test_as_many_models_as_fit_into_the_memory(tmp_path: Path, taught: Path) -> None:
    moe = open_moe(service(tmp_path / "a", taught).learning.world.engine.moe.path)
    one, more = (4 * sum(int(np.prod(piece.shape)) for piece in some) for some in (moe.plan.pieces, moe.plan.blended))
    for memory, models in ((one, 1), (one + 2 * more, 3), (100 * more, moe.num_experts)):
        made = service(tmp_path / f"{memory}", taught, memory=memory)
        assert made.info.models == models
        made.stop()
    with pytest.raises(ConfigError, match=f"memory must be at least {one} bytes"):
        service(tmp_path / "b", taught, memory=one - 1)
