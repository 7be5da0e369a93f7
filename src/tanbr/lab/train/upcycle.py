"""A dense checkpoint becomes an MoE whose experts start equal: every expert is the dense FFN."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from tanbr.errors import CheckpointError, InputError
from tanbr.moe.checkpoint import Checkpoint, TensorSpec
from tanbr.moe.families import carried_over, read_settings
from tanbr.moe.families.bert import BERT
from tanbr.moe.families.decoders import FLEX_OLMO, MIXTRAL, QWEN3
from tanbr.moe.families.t5 import T5
from tanbr.moe.family import ExpertPattern, Family, Settings, as_regex
from tanbr.moe.writing import Progress, copy_companions, new_folder, silent, write_json, write_tensors
from tanbr.tasks.card import Card, write_card

ROUTER_STD = 0.02


@dataclass(frozen=True)
class Recipe:
    """How the dense models of one type become an MoE: the way of its family, backwards."""

    family: Family
    classes: Mapping[str, str]  # dense class → MoE class
    router: str | None = None  # name of the router's weight (K, D), drawn at random
    settings: Callable[[Settings], Settings] = lambda _: {}  # what else the MoE's configuration needs
    must_be_off: tuple[str, ...] = ()  # settings of the dense model that the MoE has no counterpart for


def _top2(_: Settings) -> Settings:
    return {"num_experts_per_tok": 2}


def _normalised(source: Settings) -> Settings:
    return _top2(source) | {"norm_topk_prob": True, "moe_intermediate_size": source["intermediate_size"]}


_MIXTRAL_ROUTER = "{site}.block_sparse_moe.gate.weight"
_MLP_ROUTER = "{site}.mlp.gate.weight"

RECIPES: dict[str, Recipe] = {
    "bert": Recipe(BERT, {"BertForSequenceClassification": "BertMoeForSequenceClassification"}),
    "t5": Recipe(T5, {"T5ForConditionalGeneration": "T5MoeForConditionalGeneration"}),
    "mistral": Recipe(MIXTRAL, {"MistralForCausalLM": "MixtralForCausalLM"}, _MIXTRAL_ROUTER, _top2),
    "llama": Recipe(
        MIXTRAL, {"LlamaForCausalLM": "MixtralForCausalLM"}, _MIXTRAL_ROUTER, _top2, ("attention_bias", "mlp_bias")
    ),
    "qwen3": Recipe(
        QWEN3, {"Qwen3ForCausalLM": "Qwen3MoeForCausalLM"}, _MLP_ROUTER, _normalised, ("use_sliding_window",)
    ),
    "olmo2": Recipe(FLEX_OLMO, {"Olmo2ForCausalLM": "FlexOlmoForCausalLM"}, _MLP_ROUTER, _normalised),
}


@dataclass(frozen=True)
class Laid:
    """One tensor of the MoE: a router (no source), a copy (no experts), or some experts of a dense FFN's tensor."""

    tensor: TensorSpec
    source: str | None
    experts: range


def upcycle(dense: str | Path, out: str | Path, *, experts: int, progress: Progress = silent) -> Path:
    """Write the MoE of a dense checkpoint to the new folder `out`, and return it; every expert is the dense FFN."""
    if experts < 2:
        raise InputError(f"experts must be at least 2 (got {experts})")
    checkpoint = Checkpoint(dense)
    config, tensors = laid_out(read_settings(checkpoint.config), checkpoint.specs, experts)
    write_moe(
        out, config, tensors, lambda name, _: checkpoint.tensor(name), companions=[checkpoint.path], progress=progress
    )
    return Path(out)


def laid_out(source: Settings, dense: Mapping[str, TensorSpec], experts: int) -> tuple[dict[str, Any], list[Laid]]:
    """Turn a dense model's settings and tensors into the MoE's."""
    model_type = source["model_type"]
    if model_type not in RECIPES:
        raise CheckpointError(
            f"cannot make an MoE of a {model_type!r} model; the dense types that can be are {', '.join(RECIPES)}"
        )
    recipe = RECIPES[model_type]
    return _config(recipe, source, experts), _layout(recipe, dense, experts)


def _config(recipe: Recipe, source: Settings, experts: int) -> dict[str, Any]:
    family = recipe.family
    on = [key for key in recipe.must_be_off if source.get(key)]
    if on:
        raise CheckpointError(f"a {family.model_type} model has no {on[0]}, which the dense model uses")
    named = source.get("architectures") or []
    if len(named) != 1 or named[0] not in recipe.classes:
        wanted = " or ".join(recipe.classes)
        raise CheckpointError(
            f"config.json must name {wanted} in architectures (got {named}); load it as that, and save it"
        )
    kept = carried_over(source, family.model_type)
    config = AutoConfig.for_model(**kept | recipe.settings(source) | {family.count: experts})
    config.architectures = [recipe.classes[named[0]]]
    return dict(config.to_dict())


def ffn_names(dense: PreTrainedModel) -> list[str]:
    """List the parameters of a dense model, or of the MoE made from it, that are its experts."""
    recipe = RECIPES[dense.config.model_type.removesuffix("_moe")]
    targets = [target for pattern in recipe.family.experts for target in pattern.targets.values()]
    return [name for name, _ in dense.named_parameters() if any(re.fullmatch(as_regex(t), name) for t in targets)]


def _layout(recipe: Recipe, dense: Mapping[str, TensorSpec], experts: int) -> list[Laid]:
    patterns: dict[str, ExpertPattern] = {}
    for candidate in recipe.family.experts:
        if len(candidate.targets) == 1:
            patterns.setdefault(next(iter(candidate.targets.values())), candidate)
    result: list[Laid] = []
    routed: set[str] = set()
    for name, spec in dense.items():
        dtype, shape = spec.dtype, spec.shape
        matches = ((re.fullmatch(as_regex(target), name), pattern) for target, pattern in patterns.items())
        site, pattern = next(((found["site"], pattern) for found, pattern in matches if found), ("", None))
        if pattern is None:
            result.append(Laid(TensorSpec(name, dtype, shape), name, range(0)))
            continue
        if "{k}" in pattern.name:
            names = [pattern.name.format(site=site, k=k) for k in range(experts)]
            result += [Laid(TensorSpec(one, dtype, shape), name, range(k, k + 1)) for k, one in enumerate(names)]
        else:
            stacked = TensorSpec(pattern.name.format(site=site), dtype, (experts, *shape))
            result.append(Laid(stacked, name, range(experts)))
        if recipe.router and site not in routed and "down" not in pattern.targets:
            routed.add(site)
            router = TensorSpec(recipe.router.format(site=site), dtype, (experts, shape[1]))
            result.append(Laid(router, None, range(0)))
    if not any(laid.experts for laid in result):
        raise CheckpointError(f"the dense model holds no FFN tensors of the {recipe.family.dense} layout")
    return result


def write_moe(
    out: str | Path,
    config: dict[str, Any],
    tensors: Sequence[Laid],
    read: Callable[[str, int | None], Tensor],
    *,
    companions: Iterable[Path],
    progress: Progress,
    card: Card | None = None,
) -> None:
    """Write an MoE to the folder `out`: routers at random, the rest by `read` (dense name, expert or None for all)."""
    generator = torch.Generator().manual_seed(0)

    def filled() -> Iterator[Tensor]:
        for done, laid in enumerate(tensors):
            progress(done, len(tensors))
            if laid.source is None:
                yield (torch.randn(laid.tensor.shape, generator=generator) * ROUTER_STD).to(laid.tensor.dtype)  # (K, D)
            else:
                yield from (read(laid.source, k) for k in laid.experts or (None,))

    with new_folder(out) as folder:
        write_json(folder / "config.json", config)
        write_tensors(folder, [laid.tensor for laid in tensors], filled())
        progress(len(tensors), len(tensors))
        for companion in companions:
            copy_companions(companion, folder)
        if card is not None:
            write_card(folder, card)
