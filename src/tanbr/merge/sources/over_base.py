"""Experts over one dense base: fine-tuned checkpoints, LoRA adapters (PEFT folders), or both together.

Every tensor that differs between the experts is blended, what is equal in all is copied. With `blend_only="ffn"` all
but FFNs comes from the base, except what it lacks: heads. An adapter that leaves a layer alone counts as the base
there. Heads with different labels become one (`heads.py`). The base may be the last expert itself.

    W(x) = Σ_k x_k (W_k + s_k B_k A_k)        s_k = α_k / r_k, or α_k / √r_k with rslora

W_k is the expert's own tensor where it has one (a fine-tuned checkpoint, modules_to_save) and the base's where it is an
adapter, B_k A_k what that adds. A merge sums the tensors, each once, and adds one product of all factors.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.blend import is_finite, weighted_sum
from tanbr.merge.sources.alike import check_alike, check_base, weights_of
from tanbr.merge.sources.heads import HEAD, JoinedHead, labels_of
from tanbr.merge.sources.peft_folder import Adapter, LowRank
from tanbr.merge.sources.source import BASE, ExpertSource, Joined
from tanbr.moe.checkpoint import Checkpoint, TensorSpec
from tanbr.moe.families import read_settings
from tanbr.moe.family import MERGEABLE, Block, Family, Piece, Site

BlendOnly: TypeAlias = Literal["all", "ffn"]

FFN = re.compile(  # as transformers' architectures name them
    r"(^|\.)(mlp|ffn|feed_forward|DenseReluDense|fc1|fc2|intermediate|(?<!attention\.)output\.dense)\."
)
GLANCE = 1 << 16  # elements that are compared first: what was trained differs in them


class OverBase(ExpertSource):
    """K checkpoints or adapters of one architecture, and the base that they came from."""

    ancestors: dict[str, Block]  # target → where the base has it
    factors: Mapping[str, Mapping[int, LowRank]]  # target → expert → what it adds
    absent: dict[tuple[Block, ...], frozenset[int]]  # blocks of a head's piece → who lacks its labels

    def __init__(
        self,
        base: Checkpoint,
        experts: Sequence[Checkpoint | Adapter],
        *,
        blend_only: BlendOnly = "all",
        labels: Sequence[Sequence[str]] = (),
        with_base: bool = False,
    ) -> None:
        """Join experts; `labels` name the columns of their heads where they do not do so themselves.

        Where a base that is an expert lacks a tensor, or its head has other labels, the experts' mean stands for it.
        """
        self.names = [str(expert.path) for expert in experts]
        if len(experts) + with_base < 2:
            raise InputError(f"a blend needs two experts or more (got {len(experts)}); name each with --expert FOLDER")
        if len(set(self.names)) < len(experts):
            twice = max(self.names, key=self.names.count)
            raise InputError(f"expert {twice} is named twice; name every expert once and give it the weight you want")
        if blend_only not in get_args(BlendOnly):
            raise InputError(f"blend_only must be one of {', '.join(get_args(BlendOnly))} (got {blend_only!r})")
        whole = [expert for expert in experts if isinstance(expert, Checkpoint)]
        self.adapters = [expert for expert in experts if isinstance(expert, Adapter)]
        self._base, self._experts, self._model = base, experts, whole[0] if whole else base
        check_base(base)
        if whole:
            check_alike(base, whole)
        lacking = [name for name in weights_of(self._model) if name not in base.specs] if self.adapters else []
        if lacking:
            raise CheckpointError(
                f"{base.path} lacks {lacking[0]} of {self._model.path}; save the base with the head of the experts"
            )
        self.count, self.with_base = len(experts) + with_base, with_base
        # Dense already: no tensor changes its name, and no setting its value.
        model_type = base.config["model_type"]
        self.family = Family(model_type=model_type, dense=model_type, prefix=("", ""), count="", experts=(), width=())
        self.config = read_settings(self._model.config)
        self.checkpoint = Joined(
            base.path, self._model.config, {BASE: base} | dict(zip(self.names, experts, strict=True))
        )
        self.names += ["base"] * with_base
        self.companions = (self._model.path, base.path) if whole else (base.path,)
        self.ancestors = _ancestors(base, self._model)
        if not self.ancestors:
            raise CheckpointError(f"{base.path} is not what {self._model.path} came from: they share no tensor")
        factors: dict[str, dict[int, LowRank]] = {}
        for k, expert in enumerate(experts):
            if isinstance(expert, Adapter):
                _check_fits(expert, base)
                for target, added in expert.factors.items():
                    factors.setdefault(target, {})[k] = added
        self.factors = factors
        self.absent, self._lacked = {}, frozenset[str]()
        self.pieces = self._joined(blend_only, [tuple(of) for of in labels or [()] * self.trained])
        if not self.blended:
            what = "no FFN of these experts can be told by its name" if blend_only == "ffn" else "all experts are equal"
            raise CheckpointError(f"there is nothing to blend in {self.names[0]} and the others: {what}")
        targets = {piece.target for piece in self.blended}
        self.factors = {target: adds for target, adds in factors.items() if target in targets}
        self.sites = sites_of(self.blended)

    @property
    def unmerged(self) -> list[TensorSpec]:
        """The experts' own tensors; the base's too where an adapter needs them."""
        return [spec for spec in super().unmerged if self.adapters or not spec.name.startswith(f"{BASE}:")]

    def beside(self, folder: str) -> Path:
        """Name a folder beside the base, which may have other experts too."""
        return super().beside(f"{folder}-{self.checkpoint.fingerprint[:12]}")

    def own_files(self, expert: int) -> list[Path]:
        """List an expert's files of weights; an adapter's settings scale them. All experts share the base's."""
        if expert == self.trained:
            return []
        one = self._experts[expert]
        settings = [one.path / one.settings_file] if isinstance(one, Adapter) else []
        return settings + [file.path for file in one.files]

    def check(self, expert: int) -> None:
        """Refuse an adapter, or a base, that holds NaN or infinity."""
        super().check(expert)
        for one in (adds[expert] for adds in self.factors.values() if expert in adds):
            for name in (one.down.name, one.up.name):
                if not is_finite(self.checkpoint.tensor(name)):
                    raise CheckpointError(f"{name} holds NaN or infinity; the adapter is damaged")

    def ancestor(self, piece: Piece) -> Tensor | None:
        """View the base's tensor of a piece (n,); None if the base has none."""
        block = self.ancestors.get(piece.target)
        return None if block is None else self.checkpoint.tensor(block[0]).view(-1)

    def average(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Set `out` to Σ weights[k] · expert k: each stored tensor once, and one product of all factors."""
        shares, factors = self._shares(piece, weights), self.product(piece.target, weights)
        total = out
        if factors is not None and not (out.dtype == factors[0].dtype and out.is_contiguous()):
            total = torch.empty(out.shape, dtype=factors[0].dtype)  # rounded once
        weighted_sum(total, self.checkpoint, list(shares), list(shares.values()))
        if factors is not None:
            total.addmm_(*(side.to(total.device) for side in factors))
        if total is not out:
            out.copy_(total)

    @cached_property
    def _views(self) -> dict[str, list[tuple[int, float, Tensor, Tensor]]]:
        """The mapped factors of every matrix (m, n): expert k, s_k, (m, r), (r, n)."""
        found: dict[str, list[tuple[int, float, Tensor, Tensor]]] = {}
        for target, adds in self.factors.items():
            for k, one in adds.items():
                down, up = (self.checkpoint.tensor(side.name) for side in (one.down, one.up))
                left, right = (down.T, up.T) if one.transposed else (up, down)
                found.setdefault(target, []).append((k, one.scale, left, right))
        return found

    def product(self, target: str, weights: Sequence[float]) -> tuple[Tensor, Tensor] | None:
        """Put the weighted factors of a matrix (m, n) side by side: (m, R) and (R, n); None where none is active."""
        views = self._views.get(target, ())
        active = [(weights[k] * scale, left, right) for k, scale, left, right in views if weights[k]]
        if not active:
            return None
        wide = torch.promote_types(self._base.specs[target].dtype, torch.float32)
        ups = [left.to(wide) * scale for scale, left, _ in active]
        return torch.cat(ups, dim=1), torch.cat([right.to(wide) for *_, right in active])

    def one(self, piece: Piece, expert: int) -> Tensor:
        """Give one expert of a piece (n,), in its own type: a view where it is stored as it is."""
        if expert not in self.factors.get(piece.target, ()) and expert not in self.absent.get(piece.blocks, ()):
            return super().one(piece, expert)
        out = torch.empty(piece.shape, dtype=self.checkpoint.specs[piece.blocks[0][0]].dtype)
        self.average(out, piece, [float(k == expert) for k in range(self.count)])
        return out.view(-1)

    def _joined(self, blend_only: BlendOnly, named: list[tuple[str, ...]]) -> list[Piece]:
        """Make the pieces of the whole model; heads whose labels differ become one head."""
        own = labels_of(self.config)
        known = [labels_of(read_settings(one.config)) if isinstance(one, Checkpoint) else own for one in self._experts]
        head = JoinedHead(tuple(given or labels for given, labels in zip(named, known, strict=True)))
        specs = weights_of(self._model)
        heads: set[str] = set()
        joined = any(labels != own for labels in head.of)
        if self.with_base:
            labels = self._labels_of_base(head)
            joined, head = joined or bool(labels and labels != own), JoinedHead((*head.of, labels))
        if joined:
            head.check(self.names)
            heads = {name for name in specs if HEAD.search(name) and self._has_rows(name, head)}
            if not heads:
                raise CheckpointError(
                    f"the experts' labels differ ({'; '.join(', '.join(of) for of in head.of)}), but they have no "
                    "heads with a column for each that could be joined; train them with one head over all labels"
                )
            self.config |= head.settings()
        self.expert_labels = head.of if any(HEAD.search(name) for name in specs) else ()
        pieces: list[Piece] = []
        for name, spec in specs.items():
            self._check(name, alike=name not in heads)
            if name in heads:
                rows, absent = head.pieces(name, [self._stored(k, name)[0] for k in range(self.count)], spec.shape[1:])
                self.ancestors.pop(name, None)
                pieces += rows
                self.absent |= absent
            else:
                pieces.append(self._piece(spec, blend_only))
        return pieces

    def _labels_of_base(self, head: JoinedHead) -> tuple[str, ...]:
        """Give the labels of the base's head, if the experts' are among them; note what of their tensors it lacks."""
        specs, labels = weights_of(self._model), labels_of(read_settings(self._base.config))
        heads = {name for name in specs if HEAD.search(name)}
        labels = labels if set(labels) <= set(head.labels) and heads <= self.ancestors.keys() else ()
        self._lacked = frozenset(specs.keys() - self.ancestors.keys()) | (frozenset() if labels else heads)
        for name in sorted(self._lacked - heads):
            other = self._base.specs.get(name) or self._base.specs.get(name.partition(".")[2])
            if other is not None:
                raise CheckpointError(
                    f"the base cannot be an expert: {name} is {other.shape} {other.dtype} in {self._base.path} and "
                    f"{specs[name].shape} {specs[name].dtype} in {self._model.path}; serve the others alone (--no-base)"
                )
        return labels

    def _has_rows(self, name: str, head: JoinedHead) -> bool:
        """Whether a tensor has a row for each of an expert's labels, in every expert."""
        shapes = [self.checkpoint.specs[self._stored(k, name)[0]].shape for k in range(self.count)]
        return all(shape[:1] == (len(of),) for shape, of in zip(shapes, head.of, strict=True) if of)

    def _check(self, name: str, *, alike: bool) -> None:
        """Refuse experts whose tensors of one name are not of one kind: shape (but for a head's rows) and type."""
        mine, start = self._model.specs[name], 0 if alike else 1
        for k in range(self.count):
            spec = self.checkpoint.specs[self._stored(k, name)[0]]
            if (spec.shape[start:], spec.dtype) != (mine.shape[start:], mine.dtype):
                raise CheckpointError(
                    f"experts must hold equal tensors, but {name} is {spec.shape} {spec.dtype} in {self.names[k]} and "
                    f"{mine.shape} {mine.dtype} in {self._model.path}; save both with the same dtype and shapes (an "
                    "adapter's own head needs a base with the same, or its labels in a file that lists the experts)"
                )
        if not alike and name in self.factors:
            raise CheckpointError(f"{name}, a head that is to be joined with others, is held in factors by an adapter")

    def _stored(self, k: int, name: str) -> Block:
        """Find what expert k has of a tensor: its own, or the base's; what the base lacks, the first has for it."""
        if k == self.trained and name not in self._lacked:
            return self.ancestors[name]
        one = self._experts[k % self.trained]
        if isinstance(one, Checkpoint):
            return f"{one.path}:{name}", 0
        return (one.whole[name].name if name in one.whole else f"{BASE}:{name}"), 0

    def _piece(self, spec: TensorSpec, blend_only: BlendOnly) -> Piece:
        ancestor = self.ancestors.get(spec.name)
        if blend_only == "ffn" and ancestor is not None and not FFN.search(spec.name):
            return Piece(spec.name, spec.shape, (ancestor,), (1.0,))
        blocks = tuple(self._stored(k, spec.name) for k in range(self.count))
        if spec.name not in self.factors and not self._differ(blocks):
            return Piece(spec.name, spec.shape, blocks[:1], (1.0,))
        if spec.dtype not in MERGEABLE:
            raise CheckpointError(f"{spec.name} differs between the experts but is {spec.dtype}: it cannot be blended")
        if spec.name in self._lacked:
            self.absent[blocks] = frozenset({self.trained})
        return Piece(spec.name, spec.shape, blocks)

    def _differ(self, blocks: Sequence[Block]) -> bool:
        one, *others = (self.checkpoint.tensor(name).view(-1) for name, _ in dict.fromkeys(blocks))
        return any(not torch.equal(one[:GLANCE], other[:GLANCE]) or not torch.equal(one, other) for other in others)

    def _shares(self, piece: Piece, weights: Sequence[float]) -> dict[Block, float]:
        """Add up the weights of what is stored: block → weight; an expert's lack is filled with the others' mean."""
        lacking = self.absent.get(piece.blocks, frozenset())
        holders = [k for k in range(len(weights)) if k not in lacking]
        spread = math.fsum(weights[k] for k in lacking) / len(holders)
        found: dict[Block, list[float]] = {}
        for k in holders:
            found.setdefault(piece.blocks[k], []).append((weights[k] + spread) * piece.scale)
        shares = {block: math.fsum(own) for block, own in found.items()}
        if len(shares) == 1 and math.isclose(sum(shares.values()), 1.0, rel_tol=1e-9):
            return dict.fromkeys(shares, 1.0)  # a blend sums to 1 up to rounding
        return shares


def _check_fits(adapter: Adapter, base: Checkpoint) -> None:
    """Refuse an adapter that was made for another base."""
    for target, added in adapter.factors.items():
        spec = base.specs.get(target)
        if spec is None or spec.shape != added.shape:
            has = "has none" if spec is None else f"has {spec.shape}"
            raise CheckpointError(
                f"adapter {adapter.path} was made for another base: it changes {target} {added.shape}, of which "
                f"{base.path} {has}; name the base that it was trained on ({adapter.base or 'not said'})"
            )
    odd = next((name for name in adapter.whole if name not in base.specs), None)
    if odd is not None:
        raise CheckpointError(
            f"adapter {adapter.path} was made for another base: it holds {odd} {adapter.whole[odd].shape}, "
            f"for which {base.path} has no place; save the base with the head that the adapter was trained with"
        )


def sites_of(blended: Sequence[Piece]) -> list[Site]:
    """List the layers in which anything is blended; for what lies outside any, the modules."""
    layers = ((re.match(r".+?\.\d+(?=\.)", piece.target), piece.target) for piece in blended)
    names = (layer[0] if layer else target.rpartition(".")[0] or target for layer, target in layers)
    return [Site(name) for name in dict.fromkeys(names)]


def _ancestors(base: Checkpoint, first: Checkpoint) -> dict[str, Block]:
    """Find the base's tensors of the same shape: a bare model says `encoder…`, one with a head `bert.encoder…`."""
    tails = {name.partition(".")[2]: name for name in base.specs}
    found: dict[str, Block] = {}
    for name, spec in first.specs.items():
        for place in (name, name.partition(".")[2], tails.get(name, "")):
            if place in base.specs and base.specs[place].shape == spec.shape and base.specs[place].dtype == spec.dtype:
                found[name] = (f"{BASE}:{place}", 0)
                break
    return found
