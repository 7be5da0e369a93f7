import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cli.running import environment
from tanbr.engines import merge_files
from tanbr.engines.merge_files import PREFIX, AdapterFile, DenseFile, MergeFiles
from tanbr.errors import CheckpointError, OutputError
from tanbr.merge import Moe
from tanbr.types import as_blend

ONE, OTHER = as_blend([0.1, 0.2, 0.3, 0.4], experts=4), as_blend([1.0, 0, 0, 0], experts=4)
EPS = torch.finfo(torch.float32).eps


def test_a_dense_file_holds_what_an_export_does_bit_for_bit_whatever_was_in_it(mixtral: Moe, tmp_path: Path) -> None:
    files = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    file = files.new()
    for number, blend in enumerate((ONE, OTHER, ONE)):
        file.write(mixtral, blend)
        expected = load_file(mixtral.export(blend, tmp_path / f"export-{number}") / "model.safetensors")
        found = load_file(file.folder / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(found[name].equal(expected[name]) for name in found)
    assert {path.name for path in file.folder.iterdir()} >= {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert oct(file.folder.stat().st_mode)[-3:] == "755"
    files.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)]


def test_a_merge_that_fails_leaves_no_blend_in_it(
    mixtral: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    file = files.new()
    file.write(mixtral, ONE)

    def broken(name: str, tensor: object) -> None:
        raise CheckpointError(f"{name} holds NaN")

    with monkeypatch.context() as patched:
        patched.setattr(merge_files, "finite", broken)
        with pytest.raises(CheckpointError, match="holds NaN"):
            file.write(mixtral, OTHER)
    assert file.blend is None
    file.write(mixtral, OTHER)
    assert file.blend is not None
    assert np.array_equal(file.blend, OTHER)
    files.close()


@torch.inference_mode()
def test_an_adapter_adds_what_the_merge_does_and_every_blend_has_its_own_folder(adapters: Moe, tmp_path: Path) -> None:
    files = MergeFiles(adapters, AdapterFile, folder=tmp_path)
    file = files.new()
    seen: list[Path] = []
    for blend in (ONE, OTHER, ONE):
        file.write(adapters, blend)
        assert file.holds(blend)
        assert file.folder not in seen
        assert not any(path.exists() for path in seen)  # the one before is gone
        seen.append(file.folder)
        held = sum(path.stat().st_size for path in file.folder.glob("*.safetensors"))
        assert held < files.nbytes + 10_000  # a bound, but for the header
        base = AutoModelForCausalLM.from_pretrained(adapters.path)
        with_it = PeftModel.from_pretrained(base, file.folder).merge_and_unload().state_dict()
        for name, tensor in adapters.dense(blend).state_dict().items():
            assert torch.allclose(with_it[name], tensor, rtol=0, atol=64 * EPS * float(tensor.abs().max())), name
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_shared_memory_is_taken_if_it_has_room(mixtral: Moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(merge_files, "SHARED", shared)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    free = {shared: 10**12, temporary: 10**12}
    monkeypatch.setattr("shutil.disk_usage", lambda root: SimpleNamespace(free=free[Path(root)]))
    for room, root in ((10**12, shared), (10, temporary)):
        free[shared] = room
        files = MergeFiles(mixtral, DenseFile)
        assert files.folder.parent == root
        files.close()
    free[temporary] = 10
    with pytest.raises(OutputError, match=f"bytes for 2 merges are not free in {shared} or {temporary}"):
        MergeFiles(mixtral, DenseFile)
    assert list(shared.iterdir()) == list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not(mixtral: Moe, tmp_path: Path) -> None:
    script = (
        "import os, sys, tanbr\n"
        "from tanbr.engines.merge_files import DenseFile\n"
        "from tanbr.engines.merge_files import MergeFiles\n"
        "files = MergeFiles(tanbr.open(sys.argv[1]), DenseFile, folder=sys.argv[2])\n"
        "files.new()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(mixtral.path), str(tmp_path)], env=environment())
    (left,) = tmp_path.iterdir()
    live = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    assert not left.exists()
    other = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    assert live.folder.exists()
    live.close()
    other.close()
