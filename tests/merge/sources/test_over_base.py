"""Fine-tuned checkpoints and adapters over one base, together; what each is alone is in the other files here."""

import pytest
import torch
from safetensors.torch import load_file

import tanbr
from merge.sources.tiny_dense import adapter, build, tuned
from tanbr.errors import CheckpointError, InputError
from tanbr.merge.sources.one_adapter import export_adapter

EPS = torch.finfo(torch.float32).eps
BERT = "BertForSequenceClassification"
Q, UP = "bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.1.intermediate.dense"
BLEND = [0.5, 0.3, 0.2]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A base; a checkpoint between two adapters."""
    folder = tmp_path_factory.mktemp("mixture")
    model = build(BERT)
    model.save_pretrained(folder / "base")
    first = adapter(folder / "a", folder / "base", [Q, UP], seed=1)
    whole = tuned(model, folder / "b", seed=2)
    return folder / "base", [first, whole, adapter(folder / "c", folder / "base", [UP], seed=3)]


def as_models(base, experts):
    """Every expert as a whole model, in float64."""
    models = []
    for folder in experts:
        if (folder / "model.safetensors").exists():
            models.append({name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()})
            continue
        model = {name: tensor.double() for name, tensor in load_file(base / "model.safetensors").items()}
        tensors = load_file(folder / "adapter_model.safetensors")
        for name in tensors:
            if name.endswith("lora_A.weight"):
                target = name.removeprefix("base_model.model.").replace("lora_A.", "")
                up = tensors[name.replace("lora_A", "lora_B")].double()
                model[target] = model[target] + 2.0 * up @ tensors[name].double()
        models.append(model)
    return models


@pytest.mark.parametrize("blend", [BLEND, [1, 0, 0], [0, 1, 0], [0.5, 0, 0.5]])
def test_a_blend_is_the_sum_of_whole_models(mixture, blend) -> None:
    models, moe = as_models(*mixture), tanbr.open(mixture[0], experts=mixture[1])
    assert len(moe.source.unmerged) == len(moe.checkpoint.specs)  # adapters need the base
    for name, merged in moe.tensors(blend):
        terms = [weight * model[name] for weight, model in zip(blend, models, strict=True)]
        bound = 64 * EPS * sum(term.abs() for term in terms) + 64 * EPS * sum(terms).abs().max()
        assert ((merged.double() - sum(terms)).abs() <= bound).all(), name


def test_a_checkpoint_among_adapters_stays_itself_bit_for_bit(mixture) -> None:
    theirs = load_file(mixture[1][1] / "model.safetensors")
    for name, merged in tanbr.open(mixture[0], experts=mixture[1]).tensors([0, 1, 0]):
        assert torch.equal(merged, theirs[name]), name


def test_half_types_are_summed_in_float32_and_rounded_once(tmp_path) -> None:
    model = build(BERT, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    experts = [adapter(tmp_path / "a", tmp_path / "base", [Q], seed=1), tuned(model, tmp_path / "b", seed=2)]
    merged = dict(tanbr.open(tmp_path / "base", experts=experts).tensors([0.5, 0.5]))[f"{Q}.weight"]
    exact = sum(0.5 * model[f"{Q}.weight"] for model in as_models(tmp_path / "base", experts))
    rounding = torch.finfo(torch.bfloat16).eps / 2 * exact.abs()
    assert ((merged.double() - exact).abs() <= rounding + 64 * EPS * exact.abs().max()).all()


def test_ffns_alone_leave_what_adapters_do_elsewhere(mixture) -> None:
    base = load_file(mixture[0] / "model.safetensors")
    moe = tanbr.open(mixture[0], experts=mixture[1], blend_only="ffn")
    merged, models = dict(moe.tensors(BLEND)), as_models(*mixture)
    assert torch.equal(merged[f"{Q}.weight"], base[f"{Q}.weight"])
    expected = sum(weight * model[f"{UP}.weight"] for weight, model in zip(BLEND, models, strict=True))
    assert ((merged[f"{UP}.weight"].double() - expected).abs() <= 64 * EPS * expected.abs().max()).all()


def test_adapters_need_a_base_with_the_checkpoints_head(mixture, tmp_path) -> None:
    build(BERT).bert.save_pretrained(tmp_path / "bare")
    module = Q.removeprefix("bert.")
    bare = adapter(tmp_path / "x", tmp_path / "bare", [module], seed=1)
    with pytest.raises(CheckpointError, match="save the base with the head"):
        tanbr.open(tmp_path / "bare", experts=[bare, mixture[1][1]])


def test_adapters_with_heads_of_their_own_are_joined_by_the_labels_that_a_list_names(mixture, tmp_path) -> None:
    base = mixture[0]
    folders = []
    for k, count in enumerate((2, 4)):
        weight = torch.randn(count, 32, generator=torch.Generator().manual_seed(k))
        head = {"classifier.weight": weight, "classifier.bias": torch.full((count,), float(k))}
        folders.append(adapter(tmp_path / str(k), base, [Q], seed=k, whole=head))
    with pytest.raises(CheckpointError, match="its labels in a file that lists the experts"):
        tanbr.open(base, experts=folders)
    (tmp_path / "experts.toml").write_text(
        f'base = "{base}"\n[[experts]]\npath = "0"\nlabels = ["a", "b"]\n'
        '[[experts]]\npath = "1"\nlabels = ["b", "c", "d", "e"]\n'
    )
    merged = dict(tanbr.open(tmp_path / "experts.toml").tensors([0.5, 0.5]))
    assert merged["classifier.bias"].tolist() == [0, 0.5, 1, 1, 1]
    with pytest.raises(InputError, match="different labels"):
        export_adapter(tanbr.open(tmp_path / "experts.toml"), tmp_path / "out", blend=[0.5, 0.5])
