"""Merges by statistics: by hand for one layer, then on whole models of both families."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from moe.tiny import K, build
from tanbr.baselines.fisher import FisherMean, diagonal, fisher
from tanbr.baselines.probes import Probe, experts_alone, head_probes, linears, real_tokens, text_probes
from tanbr.baselines.regmean import Regression, grams, regmean
from tanbr.errors import DataError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.tasks import tiny
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert_moe", {}),
    "t5": ("t5_moe", {"decoder_start_token_id": 0}),
    "t5 gated": ("t5_moe", {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}),
}
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20, deadline=None)


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def family(request, tmp_path_factory) -> Moe:
    model_type, changes = request.param
    folder = tmp_path_factory.mktemp("moe") / "moe"
    build(model_type, **changes).save_pretrained(folder)
    return open_moe(folder)


def some_probes(moe: Moe) -> list[list[Probe]]:
    """Two batches of random tokens per expert, with padding; the surprise is that of the first answer."""
    rng = torch.Generator().manual_seed(3)

    def probe(rows: int) -> Probe:
        mask = torch.ones(rows, 6, dtype=torch.int64)
        mask[0, 3:] = 0
        inputs = {"input_ids": torch.randint(3, 64, (rows, 6), generator=rng) * mask, "attention_mask": mask}
        if moe.config["is_encoder_decoder"]:
            inputs["labels"] = torch.randint(3, 64, (rows, 4), generator=rng)
            inputs["labels"][-1, 2:] = -100
            return Probe(inputs, lambda logits: -logits[:, :2].log_softmax(-1)[..., 0].T)
        return Probe(inputs, lambda logits: -logits.log_softmax(-1).T)

    return [[probe(2), probe(3)] for _ in range(moe.num_experts)]


# --- one layer, by hand ---------------------------------------------------------------------------------------------


def test_fisher_by_hand() -> None:
    mean = FisherMean()
    mean.add(torch.tensor([0.0, 10.0]), torch.tensor([3.0, 1.0]))  # means of 2: shares 1.5 and 0.5
    mean.add(torch.tensor([4.0, 20.0]), torch.tensor([50.0, 150.0]))  # means of 100: shares 0.5 and 1.5
    torch.testing.assert_close(mean.value, torch.tensor([1.0, 17.5]), rtol=0, atol=1e-4)


def test_regmean_by_hand() -> None:
    regression = Regression(shrinkage=0.5)
    regression.add(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 2.0], [2.0, 1.0]]).double())  # 2 shrinks to 1
    regression.add(torch.tensor([[0.0, 2.0]]), torch.eye(2).double())
    # (4 1; 1 2) w = (3 1; 1 1)(2 0) + (0 2) = (6 4), so w = (8 10) / 7
    expected = torch.tensor([[8.0, 10.0]]).double() / 7
    torch.testing.assert_close(regression.solve(torch.zeros(1, 2)), expected, rtol=1e-5, atol=1e-5)


@given(seeds)
@few
def test_equal_information_is_the_average(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights, information = torch.randn(3, 4, 5, generator=rng), torch.rand(4, 5, generator=rng)
    gram = torch.randn(9, 5, generator=rng).double()
    mean, regression = FisherMean(), Regression(0.9)
    for weight in weights:
        mean.add(weight, information)
        regression.add(weight, gram.T @ gram)
    average = weights.mean(dim=0)
    torch.testing.assert_close(mean.value, average, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(regression.solve(average).float(), average, rtol=1e-3, atol=1e-4)


@given(seeds, st.integers(1, 3))
@few
def test_one_expert_or_equal_ones_come_back(seed: int, experts: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 5, generator=rng)
    mean, regression = FisherMean(), Regression(0.9)
    for _ in range(experts):
        x = torch.randn(9, 5, generator=rng).double()
        mean.add(weight, torch.rand(4, 5, generator=rng))
        regression.add(weight, x.T @ x)
    torch.testing.assert_close(mean.value, weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(regression.solve(weight).float(), weight, rtol=1e-3, atol=1e-4)


def test_what_no_expert_has_seen_is_averaged() -> None:
    mean, regression = FisherMean(), Regression(1.0)
    for value in (1.0, 3.0):
        mean.add(torch.full((2,), value), torch.tensor([value, 0.0]))
        regression.add(torch.full((1, 2), value), torch.tensor([[value, 0.0], [0.0, 0.0]]).double())
    assert mean.value[1] == pytest.approx(2.0)
    assert regression.solve(torch.full((1, 2), 2.0))[0, 1] == pytest.approx(2.0)
    nothing = FisherMean()
    for value in (1.0, 3.0):
        nothing.add(torch.full((2,), value), torch.zeros(2))
    assert nothing.value.tolist() == [2.0, 2.0]


# --- whole models ---------------------------------------------------------------------------------------------------


def test_the_information_is_that_of_single_rows(family: Moe) -> None:
    model, own = next(experts_alone(family, some_probes(family)))
    layers = linears(family, model)
    information = diagonal(model, layers, own)
    slow = {name: torch.zeros_like(value) for name, value in information.items()}
    for probe in own:
        for row in range(len(probe.inputs["input_ids"])):
            alone = {name: value[row : row + 1] for name, value in probe.inputs.items()}
            for surprise in probe.surprise(model(**alone).logits):
                slopes = torch.autograd.grad(
                    surprise.sum(), [model.get_parameter(name) for name in slow], retain_graph=True
                )
                for name, slope in zip(slow, slopes, strict=True):
                    slow[name] += slope.square()
    assert all(value.sum() > 0 for value in slow.values())
    for name, value in slow.items():
        torch.testing.assert_close(information[name], value, rtol=1e-3, atol=1e-6 * float(value.max()))


def test_regmean_solves_every_layers_regression(family: Moe) -> None:
    probes = some_probes(family)
    merged = regmean(family, probes, shrinkage=1.0)
    slope: dict[str, Tensor] = {}
    scale: dict[str, Tensor] = {}
    for model, own in experts_alone(family, probes):
        layers = linears(family, model)
        assert len(layers) == sum("bias" not in part.role for site in family.sites for part in site.parts)
        for name, gram in grams(model, layers, own).items():
            away = merged.get_parameter(f"{name}.weight") - layers[name].weight
            slope[name] = slope.get(name, 0) + away.double() @ gram  # of Σ_k mean ‖W x − W_k x‖² / 2
            scale[name] = scale.get(name, 0) + (away.double() @ gram).abs()
    for name, value in slope.items():
        assert value.abs().max() < 1e-3 * scale[name].max()


def test_only_the_ffns_differ_from_the_average(family: Moe) -> None:
    average = family.dense().state_dict()
    targets = {piece.target for piece in family.plan.blended}
    for merge in (fisher, regmean):
        merged = merge(family, some_probes(family))
        changed = {name for name, value in merged.state_dict().items() if not torch.equal(value, average[name])}
        assert changed
        assert changed <= targets
        assert merge is not regmean or not any(name.endswith("bias") for name in changed)
        assert all(value.isfinite().all() for value in merged.state_dict().values())


def test_padding_is_not_counted() -> None:
    probe = Probe({"attention_mask": torch.tensor([[1, 1, 0]]), "labels": torch.tensor([[5, -100]])}, lambda x: x)
    assert real_tokens("encoder.block.0.wi", probe).tolist() == [[True, True, False]]
    assert real_tokens("decoder.block.0.wi", probe).tolist() == [[True, False]]


def test_every_expert_needs_rows(family: Moe) -> None:
    for probes in (some_probes(family)[:-1], [*some_probes(family)[:-1], []]):
        with pytest.raises(DataError, match="each of the 4 experts"):
            fisher(family, probes)


# --- probes ---------------------------------------------------------------------------------------------------------


def save_tokenizer(folder: Path) -> None:
    words = {word: i for i, word in enumerate(["<pad>", "<unk>", "good", "bad", "film", "yes", "no"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = partial(PreTrainedTokenizerFast, model_input_names=["input_ids", "attention_mask"], model_max_length=32)
    fast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)


def test_the_expectation_runs_over_a_tasks_labels(tmp_path: Path) -> None:
    tasks = (Task("taste", ("accuracy",), ("bad", "good")), Task("grade", ("pearson",), scale=(0.0, 5.0)))
    build("bert_moe", num_experts=2, num_labels=3).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    rows = {"taste": [Row("taste", "good film", 1.0)] * 3, "grade": [Row("grade", ("film", "bad film"), 2.0)]}
    grade, taste = head_probes(open_moe(tmp_path), rows, space=LabelSpace(tasks), own=[1, 0], batch=2)
    assert [len(probe.inputs["input_ids"]) for probe in taste] == [2, 1]
    assert len(grade) == 1
    logits = torch.tensor([[0.3, -0.5, 0.7]], requires_grad=True)
    for probe, others, column in ((taste[0], [0.3, -0.5], 0), (grade[0], [0.7, 0.0], 2)):
        slopes = [torch.autograd.grad(s.sum(), logits, retain_graph=True)[0] for s in probe.surprise(logits)]
        p = torch.tensor(others).softmax(dim=0)[0]  # E (∂ log p)² of a yes-or-no answer is p(1 − p)
        assert len(slopes) == 2
        assert sum(float(slope[0, column] ** 2) for slope in slopes) == pytest.approx(float(p * (1 - p)))


def test_answers_of_text_to_text_models(tmp_path: Path) -> None:
    build("t5_moe", decoder_start_token_id=0).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    moe = open_moe(tmp_path)
    pairs = [[("good film", "yes"), ("bad", "no film")], [("film", "yes")], [("bad", "no")], [("good", "yes")]]
    probes = text_probes(moe, pairs, batch=8)
    assert probes[0][0].inputs["labels"].tolist() == [[5, -100], [6, 4]]
    logits = torch.zeros(2, 2, 64)
    assert probes[0][0].surprise(logits)[0].tolist() == pytest.approx([np.log(64), 2 * np.log(64)])
    assert fisher(moe, probes)(**probes[0][0].inputs).logits.isfinite().all()


def test_regmean_answers_better_than_the_average(moe: Moe) -> None:
    space = LabelSpace(tiny.TASKS)
    own = read_card(moe.path).experts_of([task.name for task in tiny.TASKS])
    probes = head_probes(moe, {t.name: tiny.generate(t.name, 32, seed=11) for t in tiny.TASKS}, space=space, own=own)
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 40, seed=12)]
    mine = {t.name: [r for r in rows if r.task == t.name] for t in tiny.TASKS}
    asked = head_probes(moe, mine, space=space, own=own)

    def reward(model: Any) -> float:
        total = 0.0
        for task, own in zip(tiny.TASKS, asked, strict=True):
            ordered = sorted((r for r in rows if r.task == task.name), key=lambda row: len("".join(row.text)))
            with torch.inference_mode():
                logits = torch.cat([model(**probe.inputs).logits for probe in own]).double().numpy()
            total += space.rewards(ordered, space.answers(ordered, logits)).sum()
        return total / len(rows)

    assert K != moe.num_experts == len(probes)
    assert reward(regmean(moe, probes)) > reward(moe.dense()) + 0.03
