import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from elsewhere import elsewhere
from lab.copies import copy, of_experts
from tanbr.errors import CheckpointError, ConfigError, DataError, StateError, TanbrError
from tanbr.lab import simulate as simulating
from tanbr.lab.corpus import generated
from tanbr.lab.simulate import Outcome, Study, simulate
from tanbr.lab.survey import Survey, survey_to
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.tasks.card import read_card, write_card

NAMES = ["tanbr", "tanbr+oracle", "average", "best-fixed", "tags", "best-per-slot"]


def place(out: Path, name: str, *, seed: int = 0) -> Path:
    return out / "runs" / f"seed{seed}-{name}.json"


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(embedded.path(), slots=12, requests=24, survey=embedded.path() / "survey.json")


@pytest.fixture(scope="module")
def done(study: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    out = tmp_path_factory.mktemp("simulate")
    return out, simulate(study, NAMES, [0, 3], out=out)


def test_every_method_sees_the_same_requests(done: tuple[Path, list[Outcome]]) -> None:
    _, outcomes = done
    assert [(o.seed, o.method) for o in outcomes] == [(seed, name) for seed in (0, 3) for name in NAMES]
    for seed in (0, 3):
        counts = [[r.counts.tolist() for r in o.records] for o in outcomes if o.seed == seed]
        assert all(one == counts[0] for one in counts)
    rewards = {o.method: np.mean([r.total_reward for r in o.records]) for o in outcomes if o.seed == 0}
    assert rewards["tags"] > rewards["best-per-slot"] > rewards["average"] - 0.05
    assert rewards["tags"] > 0.85


def test_what_is_there_is_not_run_again(study: Study, done: tuple[Path, list[Outcome]], monkeypatch) -> None:
    out, outcomes = done
    place(out, "average", seed=3).unlink()
    ran: list[str] = []
    play = simulating.play
    monkeypatch.setattr(simulating, "play", lambda *job: ran.append(job[3]) or play(*job))
    again = simulate(study, NAMES, [0, 3], out=out)
    assert ran == ["average"]
    for one, other in zip(outcomes, again, strict=True):
        np.testing.assert_array_equal([r.reward for r in one.records], [r.reward for r in other.records])
        np.testing.assert_array_equal(one.figures, other.figures)


def test_results_of_other_settings_and_corrupt_ones_are_refused(
    study: Study, done: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    out, _ = done
    with pytest.raises(StateError, match="belongs to a run with other settings"):
        simulate(replace(study, alpha=0.1), ["average"], [0], out=out)
    facts = json.loads(place(out, "tanbr").read_text())["facts"]
    assert "/" not in json.dumps(facts)  # no place of a machine
    with pytest.raises(DataError, match="tanbr survey"):
        simulate(replace(study, survey=None), ["best-fixed"], [0], out=tmp_path)
    place(tmp_path, "average").parent.mkdir()
    for broken in ('{"seed": 0}', "[" * 100_000):
        place(tmp_path, "average").write_text(broken)
        with pytest.raises(StateError, match="holds no result"):
            simulate(study, ["average"], [0], out=tmp_path)


MINE = """
import numpy as np

class Bare:  # no more than this is needed
    told = 0
    def ask(self, task_mix): return self.said
    def tell(self, decision, reward): assert reward.shape == (8,) and decision.blend[0] == 0.125; self.told += 1
    said = [0.125] * 8

class Words(Bare): said = "half"
class Two(Bare): said = np.full((2, 8), 0.125)
class Panel(Bare):
    def ask(self, task_mix, models=1): return np.eye(8)[:models]
    def tell(self, decision, reward, counts): assert reward.shape == counts.shape == (2, 8)
class Mistaken(Bare):
    def tell(self, decision, reward): return [][3]
class Demanding(Bare):
    def __init__(self, experts, tasks, rate): ...
class Deaf: ask = Bare.ask
class Locked(Bare):
    def __init__(self): self.lock = __import__("threading").Lock()
"""


def test_a_router_of_ones_own_in_the_current_folder_needs_ask_and_tell_alone(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("def (")
    few = replace(study, slots=4)
    bare, panel, average = simulate(few, ["mine:Bare", "mine:Panel@2", "average"], [0], out=tmp_path)
    np.testing.assert_array_equal(*([r.reward for r in o.records[2:]] for o in (bare, average)))
    assert panel.records[-1].blend[2:].sum() == 0
    wrong = {
        "mine:Words": "seed 0, slot 1: ask must give 8 weights, or a Decision (got str)",
        "mine:Two": "ask must give 8 weights, or a Decision (got shape (2, 8))",
        "mine:Mistaken": "slot 3: tell failed with IndexError: list index out of range (mine.py, line 16)",
        "mine:Demanding": "Demanding(experts, tasks, rate) asks for more than a router is made with",
        "mine:Deaf": "Deaf is no router: it needs ask(task_mix) and tell(decision, reward)",
        "mine:Locked": "a copy of the router (it may have a `fork` of its own) failed with TypeError",
        "mine:Bare@2": "mine:Bare@2 cannot fill a panel: its ask takes no argument `models`",
        "mine:Bare+survey": "a warm start needs a method warm_start",
        "broken:X": "'broken:X' cannot be imported (SyntaxError",
    }
    for name, says in wrong.items():
        with pytest.raises(TanbrError, match=re.escape(says)):
            simulate(few, [name], [0], out=tmp_path / "wrong")
    assert not [*(tmp_path / "wrong/runs").glob("*")]
    sys.modules.pop("mine")
    (tmp_path / "mine.py").write_text(MINE + "#")
    with pytest.raises(StateError, match="belongs to a run with other settings"):  # its results are of another router
        simulate(few, ["mine:Bare"], [0], out=tmp_path)
    sys.modules.pop("mine")


def test_what_clients_send_back_and_what_routers_are_told_decide_the_results(study: Study, tmp_path: Path) -> None:
    settings: list[dict] = [{}, {"rewards": "rewards"}, {"card": "none"}]
    runs = [
        simulate(replace(study, slots=8, **odd), ["tanbr", "average"], [0], out=tmp_path / str(i))
        for i, odd in enumerate(settings)
    ]
    labels, rewards, unknown = ([record.blend for record in tanbr.records] for tanbr, _ in runs)
    assert not np.array_equal(labels, rewards)
    assert np.ptp(labels[1]) > 0  # by the shares of the mix
    np.testing.assert_allclose(unknown[1], 1 / 8)  # even, as nothing is known of the experts
    scored = [[record.reward for record in average.records] for _, average in runs]  # by tags, in any case
    np.testing.assert_array_equal(scored, [scored[0]] * 3)
    with pytest.raises(ConfigError, match="leave it out, or --card none"):
        simulate(replace(study, card="none"), ["proportional"], [0], out=tmp_path)


def test_a_dense_checkpoint_answers_as_it_is(study: Study, done: tuple[Path, list[Outcome]], tmp_path: Path) -> None:
    """The even blend, written as a dense checkpoint, earns what the average earns; with another norm it does not."""
    open_moe(study.checkpoint).export(np.full(8, 1 / 8), tmp_path / "a+b")
    [dense] = simulate(study, [f"dense:{tmp_path / 'a+b'}"], [0], out=tmp_path)
    average = next(o for o in done[1] if (o.seed, o.method) == (0, "average"))
    np.testing.assert_allclose([r.reward for r in dense.records], [r.reward for r in average.records])
    tensors = load_file(tmp_path / "a+b" / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.weight"] *= -1
    save_file(tensors, tmp_path / "a+b" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StateError, match="belongs to a run with other settings"):
        simulate(study, [dense.method], [0], out=tmp_path)
    [other] = simulate(study, [dense.method], [0], out=tmp_path / "anew")
    assert not np.allclose([r.total_reward for r in other.records], [r.total_reward for r in dense.records])


def test_a_dense_checkpoint_that_does_not_fit_is_refused(study: Study, tmp_path: Path) -> None:
    few = replace(study, slots=1)
    open_moe(study.checkpoint).export(np.full(8, 1 / 8), tmp_path / "dense")
    name = f"dense:{tmp_path / 'dense'}"
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    turned = dict(zip(config["id2label"], reversed(config["id2label"].values()), strict=True))
    (tmp_path / "dense" / "config.json").write_text(json.dumps(config | {"id2label": turned}))
    with pytest.raises(CheckpointError, match="answers other labels"):
        simulate(few, [name], [0], out=tmp_path)
    tensors = load_file(tmp_path / "dense" / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if n != "classifier.bias"}, tmp_path / "dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"classifier\.bias does not fit"):
        simulate(few, [name], [0], out=tmp_path)
    with pytest.raises(CheckpointError, match=r"is not built like the merged .*: .* does not fit"):
        simulate(few, [f"dense:{study.checkpoint}"], [0], out=tmp_path)


def test_tags_follow_the_checkpoint_and_not_the_order_of_the_tasks(study: Study, tmp_path: Path) -> None:
    """The same model with its experts the other way round, and a card that says so, answers the same."""
    turned = copy(tmp_path / "turned", lambda name, value: value.flip(0) if of_experts(name) else value)
    card = read_card(turned)
    write_card(turned, replace(card, expert_tasks=card.expert_tasks[::-1]))
    few = replace(study, slots=3, survey=None)
    [wanted] = simulate(few, ["tags"], [0], out=tmp_path / "one")
    [found] = simulate(replace(few, checkpoint=turned), ["tags"], [0], out=tmp_path / "other")
    np.testing.assert_array_equal([r.reward for r in found.records], [r.reward for r in wanted.records])
    (turned / "tanbr.json").unlink()
    config = json.loads((turned / "config.json").read_text())
    (turned / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "expert_tasks"}))
    with pytest.raises(ConfigError, match="does not say which expert learned which"):
        simulate(replace(few, checkpoint=turned), ["tags"], [0], out=tmp_path / "third")


def test_a_survey_goes_on_where_it_stopped(moe: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = generated()
    path = tmp_path / "s.json"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey_to(path, moe, corpus, blends=13, rows=4, command="x", report=stop)
    assert not path.exists()
    seen: list[int] = []
    whole = survey_to(path, moe, corpus, blends=13, rows=4, command="x", report=lambda done, _: seen.append(done))
    assert seen == [13]  # the first ten were there
    assert len(np.unique(whole.blends.round(6), axis=0)) == 13
    assert [file.name for file in tmp_path.iterdir()] == ["s.json"]
    loaded = Survey.load(path)
    np.testing.assert_allclose(loaded.rewards, whole.rewards)
    assert loaded.rows == 4
    loaded.check(moe, corpus.tasks, path)


def test_outcomes_are_the_same_elsewhere(study: Study, tmp_path: Path) -> None:
    names = ["tanbr", "fisher", "tags", "average+ties"]
    with elsewhere() as device:
        here = simulate(replace(study, slots=3), names, [0], out=tmp_path / "here")
        there = simulate(replace(study, slots=3, device=str(device)), names, [0], out=tmp_path / "there")
        kept = simulate(replace(study, slots=3, device=str(device)), names, [0], out=tmp_path / "here")
    for one, other, again in zip(here, there, kept, strict=True):
        assert other.facts == one.facts  # what was done on one device is not done again on another
        assert again.seconds == one.seconds
        assert [record.total_reward for record in other.records] == [record.total_reward for record in one.records]
