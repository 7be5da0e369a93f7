"""A TOML file that lists experts over one base; docs/experts.md shows all that it may say.

base = "bert/"
experts = ["sst2/", "mnli/"]      # or [[experts]] tables, as `ListedExpert` says; the last may be `base = true`
"""

import reprlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from tanbr.config import Section, check_method, read, read_toml
from tanbr.errors import ConfigError
from tanbr.merge.sources.over_base import BlendOnly


class ListedExpert(Section):
    """One expert."""

    path: str = ""  # folder of a fine-tuned checkpoint or a LoRA adapter, beside the file, or a hub id; none: the base
    base: bool = False
    task: str = ""  # what it was trained for
    labels: tuple[str, ...] = ()  # of its head's columns, where it does not name them itself
    weight: float | None = Field(default=None, ge=0)  # in the blend that the file asks for


class ExpertList(Section):
    """Experts over one base, in the order of a blend's weights; the base, if it is one, is the last."""

    base: str  # a folder or a hub id
    experts: tuple[ListedExpert, ...] = Field(min_length=2)
    blend_only: BlendOnly = "all"
    method: str | None = None  # of merging; the average if the file does not say, or what a server finds best

    @property
    def trained(self) -> tuple[ListedExpert, ...]:
        """All but the base."""
        return tuple(expert for expert in self.experts if not expert.base)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of all but the base; none if the file names none."""
        return tuple(expert.task for expert in self.trained) if self.experts[0].task else ()

    @property
    def with_base(self) -> bool:
        """Whether the base is listed as an expert."""
        return self.experts[-1].base

    def weights(self, *, with_base: bool) -> tuple[float, ...]:
        """Give the blend that the file asks for (K,), which sums to 1; none if it names no weights."""
        each = [one.weight or 0.0 for one in self.trained]
        if with_base:
            each.append((self.with_base and self.experts[-1].weight) or 0.0)
        return tuple(weight / sum(each) for weight in each) if sum(each) > 0 else ()


def is_list(path: str | Path) -> bool:
    """Whether a path names a list of experts, rather than a folder or an id of the hub."""
    return str(path).endswith(".toml") and not Path(path).is_dir()


def list_of(base: str | Path, experts: Sequence[str | Path]) -> ExpertList:
    """List experts of which nothing is said but where they are."""
    return ExpertList.model_construct(base=str(base), experts=tuple(ListedExpert(path=str(one)) for one in experts))


def read_list(path: str | Path) -> ExpertList:
    """Read a list of experts; anything wrong in it is one `ConfigError`."""
    values = read_toml(path, what="the list of experts")
    if isinstance(values.get("experts"), list):
        values["experts"] = [{"path": one} if isinstance(one, str) else one for one in values["experts"]]
    found = read(ExpertList, values, source=str(path))
    check_method(found.method or "average", source=str(path))
    for one in found.experts:
        if one.base != (not one.path) or (one.base and (one.task or one.labels or one is not found.experts[-1])):
            raise ConfigError(f"{path}: an expert has a path, or is the base, with base = true, last, without a task")
    tasks = [expert.task for expert in found.trained]
    if any(tasks) and (not all(tasks) or len(set(tasks)) < len(tasks)):
        raise ConfigError(f"{path}: name the task of every expert or of none, and each but once (got {tasks})")
    experts = tuple(one.model_copy(update={"path": one.path and _beside(path, one.path)}) for one in found.experts)
    return found.model_copy(update={"base": _beside(path, found.base), "experts": experts})


def _beside(file: str | Path, place: str) -> str:
    """Find a folder that is named relative to the file; what is not there is taken as it is."""
    try:
        beside = Path(file).parent / Path(place).expanduser()
        return str(beside) if beside.exists() else place
    except (OSError, RuntimeError) as error:  # a name that is too long, the home of nobody
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {reprlib.repr(place)} cannot be the path of a folder ({why})") from None
