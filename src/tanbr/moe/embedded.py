"""The small BERT-MoE that the package carries, so that everything runs with no download."""

from pathlib import Path

from tanbr.errors import CheckpointError

_FOLDER = Path(__file__).parent / "embedded_model"


def path() -> Path:
    """Find the embedded checkpoint's folder."""
    if not (_FOLDER / "model.safetensors").is_file():
        raise CheckpointError(
            "this installation lacks the embedded model; install tanbr again, "
            "or train it with `tanbr pretrain --preset tiny` and pass the folder it writes"
        )
    return _FOLDER
