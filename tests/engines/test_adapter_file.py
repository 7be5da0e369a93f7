from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tanbr.engines.adapter_file import AdapterFile
from tanbr.engines.merge_files import MergeFiles
from tanbr.merge import Moe
from tanbr.types import as_blend

ONE, OTHER = as_blend([0.1, 0.2, 0.3, 0.4], experts=4), as_blend([1.0, 0, 0, 0], experts=4)
EPS = torch.finfo(torch.float32).eps


@torch.inference_mode()
def test_it_adds_what_the_merge_does_and_every_blend_has_a_folder_of_its_own(adapters: Moe, tmp_path: Path) -> None:
    files = MergeFiles(adapters, AdapterFile, folder=tmp_path)
    file = files.other(None)
    seen: list[Path] = []
    for blend in (ONE, OTHER, ONE):
        file.write(adapters, blend)
        assert files.holding(blend) is file
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
