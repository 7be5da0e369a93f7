import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serve.serving import TEXTS, Ledger, Run, answer, service
from tanbr.errors import StateError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.lineage import made_for
from tanbr.serve.records import Feedback


def other_weights(moe: Moe, folder: Path) -> Path:
    """The same checkpoint, trained a little further."""
    shutil.copytree(moe.path, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1e-3 * torch.ones_like(tensor) for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    return folder


def test_a_byte_copy_is_the_same_checkpoint_and_other_weights_are_another(moe: Moe, tmp_path: Path) -> None:
    here = made_for(moe, ["a"])
    assert made_for(open_moe(shutil.copytree(moe.path, tmp_path / "copy")), ["a"]) == here
    assert made_for(open_moe(other_weights(moe, tmp_path / "other")), ["a"]).checkpoint != here.checkpoint


def test_another_checkpoint_is_refused_or_adopts_what_was_learned(
    run: Run, moe: Moe, tmp_path: Path, taught: Path
) -> None:
    live = run(tmp_path / "state", rewards={"settle_slots": 0})
    answer(live, 8)
    live.end_slot()
    late = live.submit(TEXTS[:4]).result(30).request_ids
    live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in late])  # of the open slot: not told yet
    slot, version = live.state().slot, live.state().merge_version
    live.stop()
    model = other_weights(moe, tmp_path / "other")
    with pytest.raises(StateError, match=r"was made for checkpoint .* --adopt"):
        service(tmp_path / "state", taught, router=Ledger(), checkpoint=model)
    adopted = service(tmp_path / "state", taught, router=Ledger(), checkpoint=model, adopt=True)
    assert adopted.state().slot == slot + 1  # slots and versions go on
    assert adopted.state().merge_version > version
    assert adopted.learner.router.told == 8 + 4
    adopted.start()
    accepted = answer(adopted, 4)
    assert adopted.feedback([Feedback(i, reward=1.0) for i in late]).repeated == 4
    adopted.end_slot()
    adopted.end_slot()
    assert adopted.learner.router.told == 8 + 4 + accepted
    adopted.stop()
    again: Any = service(tmp_path / "state", taught, router=Ledger(), checkpoint=model)  # it is this one's now
    assert again.learner.router.told == 8 + 4 + accepted
    again.stop()
