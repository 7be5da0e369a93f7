"""Several folders of mapped files as one checkpoint, so that a piece may take blocks from each of them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tanbr.moe.checkpoint import Checkpoint, TensorFile, TensorSpec


@dataclass(frozen=True, eq=False)
class Member:
    """One of the folders."""

    path: Path
    settings: str  # name of its configuration file
    files: list[TensorFile]

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Its tensors by the names that they have in its files."""
        return {spec.name: spec for file in self.files for spec in file.specs}


class Joined(Checkpoint):
    """Files of several members; tensor `name` of member `key` is called `key:name`."""

    def __init__(self, path: Path, config: dict[str, Any], members: Mapping[str, Member]) -> None:
        self.path = path
        self.config = config
        self.members = dict(members)
        self.files: list[TensorFile] = []
        self.specs: dict[str, TensorSpec] = {}
        for key, member in self.members.items():
            offset = len(self.files)
            for spec in member.specs.values():
                self.specs[f"{key}:{spec.name}"] = replace(spec, name=f"{key}:{spec.name}", file=offset + spec.file)
            self.files += member.files

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file, by member."""
        found: dict[str, str] = {}
        for number, member in enumerate(self.members.values()):
            where = f"{number}:{member.path.resolve().name}"
            settings = (member.path / member.settings).read_bytes()
            found[f"{where}/{member.settings}"] = hashlib.sha256(settings).hexdigest()
            found |= {f"{where}/{file.path.name}": file.digest() for file in member.files}
        return found


def member_of(checkpoint: Checkpoint) -> Member:
    """Take a checkpoint's files."""
    return Member(checkpoint.path, "config.json", checkpoint.files)
