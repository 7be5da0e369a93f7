"""The dense models that answer, and the one way they change: `prepare`, check, write down, `commit`.

There are as many buffers as models in a panel, and a spare. The next blend is merged into a free buffer while the old
models answer; `commit` then moves one pointer. If more models are new than buffers are free, old models leave one after
another, each its requests to those that stay and its buffer to a new model. The new models take over all at once, so
all that answer at a time belong to one slot.

Without a spare, a check of a blend borrows the buffer of the model that answers (merge, answer, merge the old blend
back), and `commit` merges in place. Such a commit may fail after the learner has written: what answers then is whole,
old or new, and the learner has to write that down.

A batch holds its model from beginning to end: one batch, one merge version.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import CheckpointError, ConfigError, InputError
from tanbr.merge import Moe
from tanbr.moe.checkpoint import FileWatch
from tanbr.moe.text import Columns, Inputs, TextEncoder
from tanbr.serve.backends import BACKENDS, Backend, Builder
from tanbr.serve.backends.choose import Precision
from tanbr.serve.decode import NotFinite, Row
from tanbr.serve.panel import VERSION, Assignment, Live, Panel, Staged
from tanbr.types import Blend, FloatArray, Text, as_blend

NONE: Mapping[int, Live] = {}
PASS = 64  # tokens that the fixed cost of a forward pass is worth, about, on a CPU


class Engine:
    """Serves up to G blends of an MoE side by side. The experts stay on disk."""

    answers_here = True  # False: replicas elsewhere answer, with what is committed here

    def __init__(
        self,
        moe: Moe,
        *,
        models: int = 1,
        batch: int = 32,
        backend: str | Builder = "torch",
        device: str = "cpu",
        blend: ArrayLike | None = None,
        version: int = 0,
        issued: int = 0,
        slot: int = 0,
        spare: bool = False,
        precision: Precision | Literal["auto"] = "fp32",
        probes: Sequence[Text] = (),
        max_length: int | None = None,
        merge_share: float = 1.0,
    ) -> None:
        """Merge the first blend (K,), or all experts alike, into a backend, or one of `serve.backends` by name.

        Up to `models` blends may answer at once. A precision is measured on the `probes`.
        """
        if not 1 <= models <= moe.num_experts:
            raise ConfigError(f"a panel holds 1 to {moe.num_experts} models, as many as experts (got {models})")
        if isinstance(backend, str) and backend not in BACKENDS:
            raise ConfigError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
        build = BACKENDS[backend] if isinstance(backend, str) else backend
        self.moe, self.models, self.batch = moe, models, batch
        self.merge_seconds = 0.0  # of the last merge
        self.pause_seconds = 0.0  # for which the last swap kept batches waiting
        self._merge_share = merge_share
        self.encode = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"], max_length=max_length)
        self._causal = moe.plan.config().architectures[0].endswith("ForCausalLM")
        known = None if blend is None else as_blend(blend, experts=moe.num_experts)
        asked = partial(self.alike, probes)
        first = build(moe, blend=known, models=models, device=device, precision=precision, probes=asked)
        self.panel = Panel((Live(first, version, known, slot),))  # what answers at the moment
        try:
            more = models - 1 + (first.spares(models) if spare else 0)
            twins = [first.twin(moe) for _ in range(more)]
        except BaseException:
            first.close()
            raise
        # what each buffer holds; who answered longest ago comes first, what answers now at the end
        self._buffers = [*(Live(twin, version, None, slot) for twin in twins), self.live]
        self._experts: dict[int, Live] = {}  # that clients have asked for by name
        self._issued = max(version, issued)  # highest version number in use
        self._idle = threading.Condition()  # guards the pointer and the readers
        self._paused = False
        self._loading = threading.Lock()  # of experts
        self.fault = ""  # why nothing can answer: a merge in place failed, and so did merging the old blend back
        self._staged: list[Staged] = []
        self.files = FileWatch(moe.files)
        moe.release()

    @property
    def live(self) -> Live:
        """The first of the models that answer; the only one unless a panel is served."""
        return self.panel.models[0]

    @property
    def held(self) -> tuple[Live, ...]:
        """The versions that can be had back without a merge, the one that answered last at the end."""
        return tuple(one for one in self._free() if one.blend is not None and one.answered)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that can be asked."""
        return tuple(one.version for one in (*self.panel.models, *self.held))

    @property
    def backends(self) -> tuple[Backend, ...]:
        """All buffers, those that answer first."""
        return tuple(one.backend for one in (*self.panel.models, *self._free()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the head's columns."""
        return self.live.backend.columns

    @property
    def relays(self) -> bool:
        """Whether requests go to an engine as they are."""
        return self.live.backend.relays

    @property
    def writes(self) -> bool:
        """Whether the model writes text; otherwise it classifies."""
        return self.live.backend.writes

    def judged(self, agreement: float | None, margin: float) -> None:
        """Take over what was found out about the precision at another start, or by another member of a fleet."""
        for one in self.backends:
            one.agreement, one.margin = agreement, margin

    @property
    def available(self) -> bool:
        """Whether what answers can be asked now."""
        return self.live.backend.available

    def close(self) -> None:
        """Let go of what is not this process's own memory."""
        for backend in self.backends:
            backend.close()

    # --- questions past the queue: guards, measurements, tests --------------------------------------------------------

    def logits(self, texts: Sequence[Text], *, live: Live | Staged | None = None) -> FloatArray:
        """Classify texts: (n, columns), by default with the first model that answers now."""
        with self._holding(live) as backend:
            columns = self.encode.encode(texts).columns if texts else {"input_ids": []}
            return classify(backend, columns, self.encode, batch=self.batch)

    def sane(self, text: Text, live: Live | Staged) -> bool:
        """Whether a model answers a text with numbers: a label's, or the first token's of an answer."""
        if self.live.backend.asked_when_loaded:
            return True
        with self._holding(live) as backend:
            (inputs,) = self.alike([text])
            if not backend.writes:
                return bool(np.isfinite(backend.classify(inputs)).all())
            try:
                backend.generate(inputs, [Row(1)])
            except NotFinite:
                return False
            return True

    def alike(self, texts: Sequence[Text]) -> list[Inputs]:
        """Encode texts in batches of like length, as they are answered."""
        columns = self.encode.encode(texts).columns if texts else {"input_ids": []}
        return [inputs for _, inputs in _batches(columns, self.encode, most=self.batch, left=self._causal)]

    @contextmanager
    def _holding(self, live: Live | Staged | None) -> Iterator[Backend]:
        """Hold what answers, or what was prepared; merged in place until the block ends if need be."""
        if isinstance(live, Staged) and live.backend is None:
            with self._paused_for(live.blend, self.live) as backend:
                yield backend
                self._restore(self.live)
        elif live is not None and live.backend is not None:
            yield live.backend
        else:
            with self.using() as current:
                yield current.backend

    # --- batches ------------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, panel: Panel | None = None, place: int = 0, version: int | None = None) -> Iterator[Live]:
        """Hold a model that answers: no merge touches it until the block ends.

        It is the model of this `version` if that is held, or the one at `place` of the `panel`, or if that panel no
        longer answers, the first one that does.
        """
        with self._idle:
            self._idle.wait_for(lambda: not self._paused)
            if self.fault:
                raise CheckpointError(f"{self.fault}; put the checkpoint right and restart")
            at_hand = [one for one in (*self.panel.models, *self.held) if one.version == version]
            live = at_hand[0] if at_hand else self.panel.models[place if panel is self.panel else 0]
            live.backend.readers += 1
        try:
            yield live
        finally:
            with self._idle:
                live.backend.readers -= 1
                self._idle.notify_all()

    def folder_of(self, name: str) -> str | None:
        """Find the folder of an adapter that an engine asks for, by its own name or by `tanbr-v` and a version."""
        for one in (*self.panel.models, *self.held, *self._experts.values()):
            if one.backend.adapter is not None and name in (f"{VERSION}{one.version}", one.backend.adapter[0]):
                return one.backend.adapter[1]
        return None

    def expert(self, k: int) -> Live:
        """Give expert k alone, which is loaded when it is first asked for; InputError where there is no room for it."""
        with self._loading:
            live = self._experts.get(k)
            if live is None:
                if not self.live.backend.many:
                    raise InputError("this engine holds merged models alone; ask for one of them")
                live = self._experts[k] = Live(self.live.backend.twin(self.moe), -1, None)
            if live.blend is None:
                alone = np.eye(self.moe.num_experts)[k]
                live.backend.merge(self.moe, alone)
                live = self._experts[k] = replace(live, blend=alone)
            return live

    # --- changes ------------------------------------------------------------------------------------------------------

    def prepare(self, blend: ArrayLike, *, version: int | None = None) -> Staged:
        """Make the merge of `blend` (K,), by its old `version` if it had one, ready to answer; nothing else changes."""
        wanted = as_blend(blend, experts=self.moe.num_experts)
        if version is None:
            version = max([self._issued, *(one.version for one in self._staged if one.changed)]) + 1
        same = [one for one in self.panel.models if one.blend is not None and np.array_equal(wanted, one.blend)]
        if same and not self.fault:
            staged = Staged(same[0].backend, same[0].version, wanted, changed=False)
        elif self._free():
            staged = Staged(self._merged(wanted, version).backend, version, wanted, changed=True)
        else:
            self.files.check()
            self.moe.check(wanted)
            self.live.backend.stage(self.moe, wanted, share=self._merge_share)
            staged = Staged(None, version, wanted, changed=True)
        self._staged.append(staged)
        return staged

    def spread(self, *staged: Staged) -> None:
        """Have other replicas prepare the same; an engine of its own has none."""

    def commit(self, *staged: Staged, slot: int | None = None, assignment: Assignment | None = None) -> Panel:
        """Let what was prepared, and nothing else, answer from now on, credited to `slot`; the new panel."""
        if not staged or any(one not in self._staged for one in staged):
            raise RuntimeError("only what was prepared last can be committed, and only once")
        self._staged = []
        slot = self.live.slot if slot is None else slot
        self._issued = max(self._issued, *(one.version for one in staged))
        free = self._free()
        ready = sorted(range(len(staged)), key=lambda i: (staged[i].changed, _holder(staged[i].blend, free) is None))
        joined: dict[int, Live] = {}
        for i in ready:  # what needs no merge comes first
            one = staged[i]
            live = replace(self.live, version=one.version, blend=one.blend, slot=slot, place=i)
            joined[i] = self._join(one, live, joined, assignment)
        started = time.perf_counter()
        with self._idle:
            for i, live in joined.items():
                if not staged[i].changed and self._place(live) is None:
                    raise CheckpointError(f"merge version {live.version} was found broken before it was committed")
            self._answer_with(joined, assignment)
            self.fault = ""
        if all(one.backend is not None for one in staged):
            self.pause_seconds = time.perf_counter() - started
        return self.panel

    def forget(self, versions: Sequence[int]) -> None:
        """Have nobody answered by these any more, conversations neither: they were found to be bad."""
        with self._idle:
            self._buffers = [replace(one, blend=None) if one.version in versions else one for one in self._buffers]

    def discard(self, *staged: Staged) -> None:
        """Forget what was prepared (all of it if nothing is named): nothing happened."""
        self._staged = [one for one in self._staged if staged and one not in staged]

    def swap(self, blend: ArrayLike, *, version: int | None = None, slot: int | None = None) -> int:
        """Prepare a blend (K,) and commit it unseen; the merge version that now answers everything."""
        return self.commit(self.prepare(blend, version=version), slot=slot).models[0].version

    def revert(self, broken: Live) -> bool:
        """Let the others of a `broken` model's panel answer, or what answered before it; whether there is any."""
        with self._idle:
            place = self._place(broken)
            if place is None:
                return True
            if len(self.panel.models) > 1:
                self.panel = self.panel.without(place)
            elif self.held:
                self.panel = Panel((self.held[-1],))
            else:
                return False
            left = [one for one in self._buffers if one.backend is not broken.backend]
            self._buffers = [replace(broken, blend=None), *left]
            return True

    def _join(self, one: Staged, live: Live, joined: dict[int, Live], assignment: Assignment | None) -> Live:
        """Have one model of the next slot in a buffer that no other has, merged if need be."""
        if one.backend is not None and not one.changed:
            return replace(live, backend=one.backend)
        if not self._make_room(joined, assignment):
            with self._paused_for(one.blend, self.live) as backend, self._idle:
                live = replace(live, backend=backend)
                self._answer_with({live.place: live}, assignment)
                return live
        return replace(live, backend=self._merged(one.blend, one.version, joined).backend)

    def _make_room(self, joined: dict[int, Live], assignment: Assignment | None) -> bool:
        """See that a buffer is free: one of the models that go leaves its requests to the others.

        The last one leaves them to those of the next slot that are ready.
        """
        with self._idle:
            if self._free(joined):
                return True
            stay = [one.backend for one in joined.values()]
            if len(self.panel.models) > 1:
                going = [place for place, one in enumerate(self.panel.models) if one.backend not in stay]
                self.panel = self.panel.without(going[0])
            elif joined:
                self._answer_with(joined, assignment)
            return bool(self._free(joined))

    def _answer_with(self, joined: dict[int, Live], assignment: Assignment | None) -> None:
        """Let these models of a slot answer, by place, and no others; the caller holds the lock."""
        if assignment is not None:
            assignment = assignment.without(*(set(range(len(assignment.decision.blends))) - joined.keys()))
        old, self.panel = self.panel.models, Panel(tuple(joined[place] for place in sorted(joined)), assignment)
        new = [one.backend for one in self.panel.models]
        last = [*(one for one in old if one.backend not in new), *self.panel.models]
        moved = [one.backend for one in last]
        self._buffers = [one for one in self._buffers if one.backend not in moved] + last

    def _place(self, model: Live | Staged) -> int | None:
        """Where among those that answer a model is."""
        same = [one.backend is model.backend and one.version == model.version for one in self.panel.models]
        return same.index(True) if any(same) else None

    def _free(self, joined: Mapping[int, Live] = NONE) -> list[Live]:
        """Buffers of which none answers, or has `joined` the next slot's."""
        taken = [one.backend for one in (*self.panel.models, *joined.values())]
        return [one for one in self._buffers if one.backend not in taken]

    def _merged(self, blend: Blend, version: int, joined: Mapping[int, Live] = NONE) -> Live:
        """Find the free buffer that holds a blend, or merge it into one."""
        with self._idle:
            free = self._free(joined)
            ready = _holder(blend, free)
            if ready is not None:
                return ready
            prepared = [one.backend for one in self._staged if one.changed]
            chosen = next((one for one in free if one.backend not in prepared), free[0])
            self._holds(replace(chosen, blend=None))  # nobody can go back to it from here on
            self._idle.wait_for(lambda: chosen.backend.readers == 0)
        self._merge(chosen.backend, blend, share=self._merge_share)
        with self._idle:
            return self._holds(Live(chosen.backend, version, blend, answered=False))

    def _holds(self, live: Live) -> Live:
        """Say what a buffer holds now; the caller holds the lock."""
        self._buffers = [live if one.backend is live.backend else one for one in self._buffers]
        return live

    @contextmanager
    def _paused_for(self, blend: Blend, old: Live) -> Iterator[Backend]:
        """Merge in the place of `old`; requests wait until the block ends, and if it raises the old blend is back."""
        started = time.perf_counter()
        self.files.check()  # before anything is overwritten: the old blend must come from the same files
        with self._idle:
            self._paused = True
            self._idle.wait_for(lambda: old.backend.readers == 0)
        try:
            self._merge(old.backend, blend, share=1.0)
            yield old.backend
        except BaseException:
            self._restore(old)
            raise
        finally:
            with self._idle:
                self._paused = False
                self._idle.notify_all()
            self.pause_seconds = time.perf_counter() - started

    def _restore(self, old: Live) -> None:
        self.fault = f"merge version {old.version} could not be restored after a merge in place that failed"
        self.files.check()
        old.backend.merge(self.moe, self.moe.check(old.blend))
        self.fault = ""

    def _merge(self, backend: Backend, blend: Blend, *, share: float) -> None:
        started = time.perf_counter()
        self.files.check()
        self.moe.check(blend)
        backend.merge(self.moe, blend, share=share)
        self.merge_seconds = time.perf_counter() - started


def _holder(blend: Blend, free: Sequence[Live]) -> Live | None:
    """Find the free buffer that holds a blend."""
    return next((one for one in free if one.blend is not None and np.array_equal(blend, one.blend)), None)


def classify(backend: Backend, columns: Columns, encoder: TextEncoder, *, batch: int) -> FloatArray:
    """Answer encoded texts: logits (n, columns); at most `batch` texts a pass, those of like length together."""
    logits = np.empty((len(columns["input_ids"]), len(backend.columns)))
    for group, inputs in _batches(columns, encoder, most=batch):
        logits[group] = backend.classify(inputs)
    return logits


def _batches(
    columns: Columns, encoder: TextEncoder, *, most: int, left: bool = False
) -> Iterator[tuple[list[int], Inputs]]:
    """Pad texts in groups of like length: the places of each group's texts, and these."""
    lengths = [len(row) for row in columns["input_ids"]]
    for group in like_lengths(lengths, most=most) if lengths else ():
        yield group, encoder.pad({name: [rows[i] for i in group] for name, rows in columns.items()}, left=left)


def like_lengths(lengths: Sequence[int], *, most: int, fixed: int = PASS) -> list[list[int]]:
    """Cut rows (n,) into groups of at most `most`, each padded to its longest, so that all together cost least.

    A group costs its padded tokens and the `fixed` cost of a pass. Where one group is best, its rows keep their order.
    """
    n = len(lengths)
    if n <= most and n * max(lengths) - sum(lengths) <= fixed:  # there is less padding than a second pass costs
        return [list(range(n))]
    order = sorted(range(n), key=lengths.__getitem__)
    least = [0.0] + [float("inf")] * n  # cost of the first rows …
    begins = [0] * (n + 1)  # … and where their last group begins
    for end in range(1, n + 1):
        longest = lengths[order[end - 1]]
        for begin in range(max(0, end - most), end):
            cost = least[begin] + longest * (end - begin) + fixed
            if cost < least[end]:
                least[end], begins[end] = cost, begin
    groups, end = [], n
    while end:
        groups.append(order[begins[end] : end])
        end = begins[end]
    return groups[::-1]
