from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tanbr.engines import dense_file
from tanbr.engines.dense_file import DenseFile
from tanbr.engines.merge_files import PREFIX, MergeFiles
from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.types import as_blend

ONE, OTHER = as_blend([0.1, 0.2, 0.3, 0.4], experts=4), as_blend([1.0, 0, 0, 0], experts=4)


def test_it_holds_what_an_export_does_bit_for_bit_whatever_was_in_it(mixtral: Moe, tmp_path: Path) -> None:
    files = MergeFiles(mixtral, DenseFile, folder=tmp_path)
    file = files.other(None)
    for blend in (ONE, OTHER, ONE):
        file.write(mixtral, blend)
        expected = load_file(
            mixtral.export(blend, tmp_path / f"export-{len(list(tmp_path.iterdir()))}") / "model.safetensors"
        )
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
    file = files.other(None)
    file.write(mixtral, ONE)

    def broken(name: str, tensor: object) -> None:
        raise CheckpointError(f"{name} holds NaN")

    with monkeypatch.context() as patched:
        patched.setattr(dense_file, "finite", broken)
        with pytest.raises(CheckpointError, match="holds NaN"):
            file.write(mixtral, OTHER)
    assert files.holding(ONE) is files.holding(OTHER) is None
    file.write(mixtral, OTHER)
    assert file.blend is not None
    assert np.array_equal(file.blend, OTHER)
    files.close()
