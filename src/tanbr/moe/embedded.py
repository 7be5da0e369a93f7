"""The small MoEs that the package carries, so that everything runs with no download."""

from pathlib import Path
from typing import Literal, TypeAlias

from tanbr.errors import CheckpointError

EmbeddedModel: TypeAlias = Literal["bert", "t5"]  # the one answers by a head, the other writes its answers

_HERE = Path(__file__).parent
_FOLDERS: dict[EmbeddedModel, tuple[str, str]] = {"bert": ("embedded_model", "tiny"), "t5": ("embedded_t5", "tiny-t5")}


def path(kind: EmbeddedModel = "bert") -> Path:
    """Find an embedded checkpoint's folder."""
    name, preset = _FOLDERS[kind]
    folder = _HERE / name
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            "this installation lacks the embedded model; install tanbr again, "
            f"or train it with `tanbr pretrain --preset {preset}` and pass the folder it writes"
        )
    return folder
