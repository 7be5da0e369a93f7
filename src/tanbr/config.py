"""Every default of the project, one documented field each; read from TOML, where an unknown key is an error."""

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tanbr.errors import ConfigError


class Section(BaseModel):
    """A frozen group of settings that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PaperModeConfig(Section):
    """Algorithm 1 as printed; the paper's own constants where it gives them."""

    nu: float = Field(1.0, gt=0)
    """ν₁, smoothness: how far rewards can differ inside the root region."""
    rho: float = Field(0.5, gt=0, lt=1)
    """ρ, how fast that falls with each level of the tree."""
    threshold_constant: float = Field(1.0, gt=0)
    """C of the expansion threshold τ_h(t)."""
    delta: float = Field(1.0, gt=0, le=1)
    """δ, confidence level; the paper's 1 lets the root split in slot 1."""
    ridge: float = Field(1.0, gt=0)
    """λ, regularisation of the loss and of Z."""
    width: int = Field(64, ge=2, multiple_of=2)
    """w, width of the hidden layers."""
    layers: int = Field(2, ge=2)
    """L, matrices in the network; 2 is one hidden layer."""
    learning_rate: float = Field(1e-3, gt=0)
    """η, step size of line 14."""
    steps: int = Field(10, ge=1)
    """J, gradient steps per slot."""
    loss: Literal["sum", "mean"] = "sum"
    """Whether the loss adds the slots up (as printed; diverges for large η·w·t) or averages them."""
    confidence: Literal["exact", "diagonal"] = "diagonal"
    """Z in full, or only its diagonal."""
    gamma: Literal["constant", "theory"] = "constant"
    """γ as a constant (υ), or by the printed formula, which needs ηwλ < 1."""
    exploration: float = Field(1.0, gt=0)
    """υ, exploration parameter; the value of the constant γ."""
    norm_bound: float = Field(1.0, gt=0)
    """S of the printed γ."""
    gamma_constants: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """C₁, C₂, C₃ of the printed γ."""
    representative: Literal["lp", "proportional"] = "lp"
    """A leaf's point: a corner found by linear programming, or the interior point lo + s(hi − lo)."""
    memory: int = Field(100_000, ge=1)
    """Most told slots the loss runs over; older ones are forgotten."""


class DefaultModeConfig(Section):
    """The pooled Gaussian process with the vertex tree."""

    arms: int = Field(256, ge=8)
    """Most blends whose rewards are pooled; bounds the cost of a slot."""
    snap: float = Field(0.02, gt=0, lt=1)
    """A blend this near (Euclid) to a known arm is played as that arm."""
    pool: int = Field(600, ge=16)
    """Fixed candidate blends."""
    room: int = Field(400, ge=0)
    """Candidate blends that belong to the tree; 0 turns the tree off."""
    children: int = Field(32, ge=2)
    """Most children of a node; with more experts, the most promising are taken."""
    expand_below: float = Field(0.5, gt=0, lt=1)
    """A node is expanded once its variance is below this share of the prior's."""
    recent_mixes: int = Field(8, ge=1)
    """How many recent task mixes a leaf may be good for before it is recycled."""
    beta: float = Field(2.0, ge=0)
    """Standard deviations in the upper confidence bound."""
    prior_variance: float = Field(0.08, gt=0)
    """Prior variance of a task's reward around its mean."""
    mean_variance: float = Field(0.04, gt=0)
    """Prior variance of a task's mean reward around 1/2."""
    width: float = Field(0.7, gt=0)
    """Kernel width before the first refit."""
    widths: tuple[float, ...] = (0.42, 0.55, 0.7, 0.85, 1.0)
    """Kernel widths a refit chooses from."""
    noise: float = Field(0.05, gt=0)
    """Standard deviation of one request's reward before it is estimated."""
    refits: tuple[int, ...] = (24, 40, 80, 160, 320, 640, 1280)
    """Told slots after which kernel width and noise are fitted again."""
    polish_from: int = Field(3, ge=0)
    """How many of the best candidates are improved by gradient steps."""
    polish_steps: int = Field(2, ge=0)
    """Gradient steps on the upper confidence bound."""
    forgetting: float = Field(1.0, gt=0, le=1)
    """Share of what is known that survives a slot; below 1 for rewards that drift."""


class RouterConfig(Section):
    """How `Tanbr` chooses and learns."""

    history: int = Field(5000, ge=0)
    """Told slots kept for `Tanbr.history` and `explain`."""
    paper: PaperModeConfig = Field(default_factory=PaperModeConfig)
    """Settings of mode "paper"."""
    default: DefaultModeConfig = Field(default_factory=DefaultModeConfig)
    """Settings of mode "default"."""


class MonitorConfig(Section):
    """How the task mix is estimated."""


class Config(Section):
    """The whole configuration, one section per stage."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)


def load(path: str | Path) -> Config:
    """Read a TOML file; anything wrong in it is one `ConfigError`."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return parse(values, source=str(path))


def parse(values: dict[str, Any], *, source: str = "configuration") -> Config:
    """Build a `Config` from nested dictionaries; anything wrong in them is one `ConfigError`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{where}: {problem['msg']} (got {problem['input']!r})"
    section: type[BaseModel] = Config
    for part in problem["loc"][:-1]:
        section = section.model_fields[str(part)].annotation  # type: ignore[assignment]
    known = list(section.model_fields)
    near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {where!r}; {hint}"
