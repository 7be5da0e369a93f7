"""A TOML file that lists experts over one base.

    base = "bert/"
    method = "average"            # how blends are merged
    blend_only = "all"            # or "ffn"

    [[experts]]
    path = "sst2/"                # a fine-tuned checkpoint or a LoRA adapter; beside this file, or a hub id
    task = "sentiment"            # what it was trained for
    labels = ["bad", "good"]      # of its head, where it does not name them itself
    weight = 0.5                  # in the blend that the file asks for

    [[experts]]                   # the last one may be the base itself
    base = true

`experts = ["sst2/", "mnli/"]` is enough where nothing is to be said of them.
"""

import reprlib
from pathlib import Path

from pydantic import Field

from tanbr.config import Section, check_method, read, read_toml
from tanbr.errors import ConfigError
from tanbr.merge.sources.over_base import BlendOnly


class ListedExpert(Section):
    """One expert."""

    path: str = ""
    """Folder of a fine-tuned checkpoint or of a LoRA adapter, or a model id of the hub."""
    base: bool = False
    """Whether it is the base itself, which has no path."""
    task: str = ""
    """The task that it was trained for."""
    labels: tuple[str, ...] = ()
    """What the columns of its head are called, in their order."""
    weight: float | None = Field(default=None, ge=0)
    """Its weight in the blend that the file asks for."""


class ExpertList(Section):
    """Experts over one base."""

    base: str
    """Folder of the dense model that the experts came from, or a model id of the hub."""
    experts: tuple[ListedExpert, ...] = Field(min_length=2)
    """The experts, in the order of a blend's weights; the base, if it is one, is the last."""
    blend_only: BlendOnly = "all"
    """Blend whatever differs, or FFNs alone."""
    method: str | None = None
    """How blends are merged; by averages if the file does not say, or as a server finds best."""

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
        each = [one.weight or 0.0 for one in self.trained] + [
            self.with_base * (self.experts[-1].weight or 0.0)
        ] * with_base
        return tuple(weight / sum(each) for weight in each) if sum(each) > 0 else ()


def is_list(path: str | Path) -> bool:
    """Whether a path names a file that lists experts, rather than a folder or an id of the hub."""
    return str(path).endswith(".toml") and not Path(path).is_dir()


def read_list(path: str | Path) -> ExpertList:
    """Read a list of experts; anything wrong in it is one `ConfigError`."""
    values = read_toml(path, what="the list of experts")
    if isinstance(values.get("experts"), list):
        values["experts"] = [{"path": one} if isinstance(one, str) else one for one in values["experts"]]
    found = read(ExpertList, values, source=str(path))
    check_method(found.method or "average", source=str(path))
    for one, last in ((one, one is found.experts[-1]) for one in found.experts):
        if one.base != (not one.path) or (one.base and (one.task or one.labels or not last)):
            raise ConfigError(
                f"{path}: an expert has a path, or is the base, with base = true, last and without a task"
            )
    tasks = [expert.task for expert in found.trained]
    if any(tasks) and (not all(tasks) or len(set(tasks)) < len(tasks)):
        raise ConfigError(f"{path}: name the task of every expert or of none, and each but once (got {tasks})")
    experts = tuple(
        one if one.base else one.model_copy(update={"path": _beside(path, one.path)}) for one in found.experts
    )
    return found.model_copy(update={"base": _beside(path, found.base), "experts": experts})


def _beside(file: str | Path, place: str) -> str:
    """Find a folder that is named relative to the file; what is not there is taken as it is."""
    try:
        beside = Path(file).parent / Path(place).expanduser()
        return str(beside) if beside.exists() else place
    except (OSError, RuntimeError) as error:  # a name that is too long, the home of nobody
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {reprlib.repr(place)} cannot be the path of a folder ({why})") from None
