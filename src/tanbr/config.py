"""Every default of the project, one documented field each; read from TOML, where an unknown key is an error."""

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

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

    arms: int = Field(192, ge=8)
    """Most blends whose rewards are pooled; bounds the cost of a slot."""
    snap: float = Field(0.03, gt=0, lt=0.5)
    """A blend this near (Euclid) to a known arm is played as that arm."""
    opening: int = Field(33, ge=1)
    """Most first asks that are spent on the even blend and on single experts."""

    pool: int = Field(600, ge=16)
    """Fixed candidate blends."""
    room: int = Field(400, ge=0)
    """Candidate blends that belong to the tree; 0 turns the tree off."""
    children: int = Field(16, ge=2)
    """Most children of a node; with more experts, the most promising ones."""
    expand_below: float = Field(0.5, gt=0, lt=1)
    """A node is expanded once its variance is below this share of the prior's."""
    recent_mixes: int = Field(8, ge=1)
    """Recent task mixes for which a leaf must have fallen behind before it is recycled."""
    climbers: int = Field(3, ge=1)
    """How many of the best candidates are moved up the bound after a slot."""
    climbs: int = Field(2, ge=0)
    """Gradient steps of each."""
    climb_size: float = Field(0.1, gt=0)
    """Length of the first step (Euclid); each next is half as long."""

    beta: float = Field(2.0, ge=0)
    """Standard deviations in the upper confidence bound, at first."""
    beta_floor: float = Field(0.5, ge=0)
    """Standard deviations in the upper confidence bound, in the end."""
    beta_half: float = Field(200.0, gt=0)
    """Told slots in which the way from the one to the other is halved."""
    open_reach: float = Field(0.5, gt=0)
    """How far, in kernel widths, a decision that is still open lowers the variance around it."""

    width: float = Field(0.5, gt=0)
    """Kernel width before the first refit: rather too narrow, which explores, than too wide, which does not."""
    widths: tuple[float, ...] = Field((0.42, 0.55, 0.7, 0.85, 1.0), min_length=1)
    """Kernel widths a refit chooses from."""
    variance: float = Field(0.08, gt=0)
    """Prior variance of a task's reward around the task's mean."""
    variances: tuple[float, ...] = Field((0.08, 0.15), min_length=1)
    """Prior variances a refit chooses from."""
    mean_variance: float = Field(0.04, gt=0)
    """Prior variance of a task's mean reward around 1/2."""
    noise: float = Field(0.05, gt=0)
    """Standard deviation of a reward with count 1, before it is estimated."""
    request_noise: float = Field(0.4, gt=0)
    """The same for the reward of one request, mostly right or wrong: see `RouterConfig.of_requests`."""
    correlation: float = Field(0.25, ge=0, le=1)
    """Correlation of two tasks' rewards, before it is estimated."""
    own_experts: tuple[int, ...] = ()
    """Expert that was trained for each task, where that is known (V numbers); none if empty."""
    own_lift: float = Field(0.4, ge=0, le=1)
    """How much more reward a task is expected to earn from its own expert alone than without it, before it is seen."""
    refits: tuple[int, ...] = (80, 160, 320, 640, 1280)
    """Told slots after which width, variance, noise and correlation are fitted; earlier fits declare the map flat."""
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

    def of_requests(self, own_experts: tuple[int, ...] = ()) -> "RouterConfig":
        """Give the settings for rewards that are means over single requests, with the requests as counts.

        Where the checkpoint says which expert was trained for each task, that is the prior, and less is left to
        explore: no slot is spent on every expert alone, and the bound is tighter.
        """
        update: dict[str, Any] = {"noise": self.default.request_noise}
        if own_experts:
            update |= {"own_experts": own_experts, "beta": min(self.default.beta, 1.0), "opening": 1}
        return self.model_copy(update={"default": self.default.model_copy(update=update)})


class MonitorConfig(Section):
    """How the task mix is estimated."""

    sketch_rows: int = Field(default=3, ge=1, le=16)
    """Hash functions of each Count-Min Sketch."""
    sketch_width: int = Field(default=8192, ge=16)
    """Counters per hash function and task; a power of two."""
    smoothing: float = Field(default=1.0, gt=0)
    """Laplace's pseudo-count of an n-gram."""
    history: int = Field(default=1024, ge=8)
    """Distinct texts per task that the calibration is fitted on."""
    penalty: float = Field(default=5e-4, ge=0)
    """L2 penalty on the weights of the calibration."""
    refit_growth: float = Field(default=0.25, ge=0)
    """The calibration is fitted again, between slots, when the history has grown by this share."""
    cluster_start: int = Field(default=16, ge=1)
    """Distinct requests per task before `clusters` groups them for the first time."""
    cluster_sample: int = Field(default=4096, ge=64)
    """Distinct requests that `clusters` keeps the vectors of."""
    slot_sample: int = Field(default=4096, ge=64)
    """Distinct requests per slot that the mix is estimated from; a larger slot is sampled."""
    em_rounds: int = Field(default=200, ge=1)
    """Most rounds of expectation-maximisation."""
    em_tolerance: float = Field(default=1e-5, gt=0)
    """EM stops when a round moves the mix by less than this (L1)."""
    gain: float = Field(default=0.3, gt=0, le=1)
    """Weight of the newest slot in the moving average of the forecast, to begin with."""
    gain_rate: float = Field(default=0.2, ge=0)
    """How fast that weight adapts: its logarithm moves by this much times the agreement of successive errors."""
    gain_least: float = Field(default=0.05, gt=0, le=1)
    """The weight never falls below this."""
    reset_sigmas: float = Field(default=2.0, ge=0)
    """The average starts afresh when the mix jumps by more than this many times what chance explains …"""
    reset_margin: float = Field(default=0.1, ge=0)
    """… plus this (L1)."""
    drift: float = Field(default=0.02, ge=0)
    """Standard deviation that each slot adds to the forecast of a task's share."""
    unknown_quantile: float = Field(default=0.01, gt=0, lt=0.5)
    """Share of each task's own history that may count as unlike any task."""
    alarm_share: float = Field(default=0.05, gt=0, lt=1)
    """The alarm sounds when the unknown share is above this beyond chance …"""
    alarm_sigmas: float = Field(default=3.0, ge=0)
    """… by this many standard deviations."""

    @field_validator("sketch_width")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two")
        return value


class RunConfig(Section):
    """What every training run needs."""

    max_length: int = Field(default=64, ge=8)
    """Longest text in tokens; what is longer is cut."""
    train_rows: int = Field(default=30_000, ge=1)
    """Most rows a task to draw batches from."""
    batch: int = Field(default=8, ge=1)
    """Rows that the task with the fewest rows has in a step."""
    steps: int = Field(default=2_500, ge=1)
    """Steps in which each task trains its own expert."""
    warmup: int = Field(default=200, ge=1)
    """Steps over which the rates rise to their full value, before they fall along half a cosine."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of a step's gradient."""
    log_every: int = Field(default=10, ge=1)
    """Steps whose mean loss is one entry of the curve."""
    save_every: int = Field(default=500, ge=1)
    """Steps between two resumable states."""
    seed: int = 0
    """Seed of whatever is drawn: initial weights, rows, batches."""


class PretrainConfig(RunConfig):
    """How a task-routed MoE is trained: one expert per task from a dense ancestor."""

    batch_growth: float = Field(default=0.0, ge=0, le=1)
    """A task with n times the rows of the smallest has n to this power times as many in a step."""
    expert_rate: float = Field(default=2e-3, gt=0)
    """Learning rate of the experts."""
    shared_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of what the experts share: embeddings, attention, norms."""
    head_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of the classification head and what pools for it, and of gates."""
    train_embeddings: bool = True
    """Whether the embeddings learn with what is shared, or stay the ancestor's."""
    look_every: int = Field(default=0, ge=0)
    """Steps between two looks at each task's figure on held-out rows; 0 for none."""
    look_rows: int = Field(default=128, ge=2)
    """Held-out rows a task in a look."""
    patience: int = Field(default=4, ge=1)
    """Looks without a better figure after which a task keeps its best expert and leaves the training."""

    final_rows: int = Field(default=400, ge=2)
    """Rows a task of GLUE's dev that the trained model is scored on in the end."""

    hidden_size: int = Field(default=96, ge=8)
    """Width D of an ancestor that is trained from nothing (preset tiny), as are the next ones."""
    layers: int = Field(default=3, ge=1)
    """Its encoder layers; each holds one expert site."""
    heads: int = Field(default=4, ge=1)
    """Its attention heads per layer."""
    ffn_size: int = Field(default=192, ge=8)
    """Width F of an expert's hidden layer."""
    ancestor_steps: int = Field(default=2_000, ge=0)
    """Steps in which one dense model learns all tasks, before the experts part from it; 0 for none."""
    ancestor_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the ancestor."""
    alignment_weight: float = Field(default=2.0, ge=0)
    """Weight of the alignment of pairs in the ancestor's loss."""


class FinetuneConfig(RunConfig):
    """How normalisation layers are tuned while a router learns (the paper: 10,000 steps of 128 rows, length 128)."""

    train_rows: int = Field(default=4_000, ge=1)
    """Most rows a task to draw batches from."""
    batch: int = Field(default=32, ge=1)
    """Rows of a step, drawn by the step's task mix."""
    steps: int = Field(default=300, ge=1)
    """Steps: one blend and one gradient step each."""
    warmup: int = Field(default=20, ge=1)
    """Steps over which the rates rise to their full value, before they fall along half a cosine."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    log_every: int = Field(default=5, ge=1)
    """Steps whose mean loss is one entry of the curve."""
    save_every: int = Field(default=50, ge=1)
    """Steps between two resumable states."""
    norm_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the normalisation layers."""
    gate_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the gates of rivals that have them."""
    alpha: float = Field(default=0.3, gt=0)
    """How even the steps' task mixes are, each a draw from Dirichlet(alpha)."""
    eval_rows: int = Field(default=200, ge=2)
    """Rows a task behind the figures before and after."""


class RewardConfig(Section):
    """Where rewards come from. A source's weight says what one reward of it counts; 0 turns the source off."""

    feedback: float = Field(default=1.0, ge=0)
    """Weight of a client's own reward."""
    labels: float = Field(default=1.0, ge=0)
    """Weight of a delayed true label, scored as the task scores; above 0 the answers' logits are stored."""
    shadow: float = Field(default=0.0, ge=0)
    """Weight of the agreement with the un-merged MoE."""
    confidence: float = Field(default=0.0, ge=0)
    """Weight of the model's own confidence."""
    shadow_share: float = Field(default=0.02, gt=0, le=1)
    """Share of requests that the un-merged MoE answers too, when `shadow` is on."""
    settle_slots: int = Field(default=1, ge=0)
    """Slots that must end after a slot before the router is told its reward; what comes later is told apart."""
    least_count: float = Field(default=0.1, gt=0)
    """A task that fewer requests than this speak for in a slot is unseen."""


class GuardConfig(Section):
    """When a blend is not served, or no longer."""

    margin: float = Field(default=0.1, gt=0)
    """How far a blend's reward may fall below that of the last good one, task by task and weighted by the mix."""
    probe_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the probe texts that a new blend answers before it is served; 0 only looks for NaN on one of them."""
    tries: int = Field(default=3, ge=1)
    """Choices of the router that may be probed and refused for one slot, before the old blend stays."""
    least_count: int = Field(default=20, ge=2)
    """Rewards of live requests below which the guard does not judge."""
    sigmas: float = Field(default=2.0, ge=0)
    """A fall must be this many standard errors beyond the margin to count."""
    exploration: float = Field(default=1.0, ge=0, le=1)
    """Largest share of slots that may serve a blend chosen for what might be learned; 1 is no limit."""
    exploration_window: int = Field(default=100, ge=1)
    """Slots over which that share is counted."""


class ServeConfig(Section):
    """How a model is served."""

    slot_requests: int | None = Field(default=None, ge=1)
    """A slot ends after this many requests …"""
    slot_seconds: float | None = Field(default=None, gt=0)
    """… or after this many seconds (60 if neither is given); both: whichever comes first."""
    batch: int = Field(default=32, ge=1)
    """Most texts in a batch."""
    batch_wait: float = Field(default=0.0, ge=0)
    """Seconds a batch that is not full waits for more, once the model is free."""
    queue: int = Field(default=1024, ge=1)
    """Texts that may wait for an answer; beyond it a request is refused."""
    max_length: int = Field(default=128, ge=8)
    """Longest text in tokens; what is longer is cut."""
    max_tokens: int = Field(default=256, ge=1)
    """Most tokens a text-to-text model writes for one prompt."""
    device: str = "cpu"
    """Torch device the model runs on."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of the model's arithmetic; torch's own choice if not given."""
    precision: Literal["fp32", "int8"] = "fp32"
    """int8 is refused when its measured agreement on the probe texts is below `int8_agreement`."""
    int8_agreement: float = Field(default=0.98, ge=0, le=1)
    """Least share of probe answers that must be the same in int8."""
    low_memory: bool = False
    """Merge in place, with a pause, instead of into a spare FFN buffer."""
    regression: bool = False
    """Merge by regression, with the matrices that `tanbr grams` has put beside the experts."""
    merge_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the time that a background merge works; it rests the other part, so that requests stay fast."""
    min_gain: float = Field(default=0.0, ge=0)
    """A new blend is merged only if its reward may be this much above the served one's; 0 merges every new blend."""
    keep_versions: int = Field(default=20, ge=2)
    """Last good blends that can be rolled back to."""
    keep_slots: int = Field(default=10_000, ge=10)
    """Slots whose requests and feedback are kept; feedback for older requests is refused as unknown."""
    keep_requests: int = Field(default=1_000_000, ge=1_000)
    """Requests (and pieces of feedback) that are kept; whole slots are forgotten when there are more."""
    store_texts: bool = False
    """Whether the store keeps the texts of requests."""
    seed: int = Field(default=0, ge=0)
    """Seed of the router, and of which requests are shadowed."""
    max_active: int | None = Field(default=None, ge=1)
    """B, most experts in a blend; all of them if not given."""
    rewards: RewardConfig = Field(default_factory=RewardConfig)
    """Where rewards come from."""
    guard: GuardConfig = Field(default_factory=GuardConfig)
    """When a blend is not served, or no longer."""


class HttpConfig(Section):
    """What a client may ask of the server, and how long it may take."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may call a server that listens on loopback, beside localhost and its addresses."""
    proxies: tuple[str, ...] = ()
    """Addresses of reverse proxies whose X-Forwarded-For is believed."""
    inputs: int = Field(default=256, ge=1)
    """Most texts or prompts in a request."""
    text_chars: int = Field(default=20_000, ge=1)
    """Most characters in a text."""
    feedback: int = Field(default=1000, ge=1)
    """Most pieces of feedback in a request."""
    body_bytes: int = Field(default=1 << 20, ge=1024)
    """Largest body of a request."""
    held_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """Most bytes of bodies that are read but not yet answered, over all clients."""
    connections: int = Field(default=512, ge=1)
    """Most connections open at once."""
    rate: float = Field(default=0.0, ge=0)
    """Requests a second that one client may make; 0 sets no limit."""
    burst: int = Field(default=100, ge=1)
    """Requests that one client may make at once before `rate` holds it back."""
    read_seconds: float = Field(default=15.0, gt=0)
    """A request must have arrived whole, and an answer must be taken, within this time."""
    answer_seconds: float = Field(default=30.0, gt=0)
    """A request that is not answered within this time is given up."""
    stop_seconds: int = Field(default=30, ge=1)
    """Time to finish what was accepted when the server is told to stop."""


MINILM = PretrainConfig(
    max_length=64, train_rows=20_000, batch=6, batch_growth=0.2, ancestor_steps=500, steps=1_000, warmup=40,
    ancestor_rate=1.5e-4, expert_rate=3e-4, shared_rate=5e-5, head_rate=4e-4, train_embeddings=False,
    log_every=5, look_every=125, look_rows=300, patience=4, save_every=125,
)  # fmt: skip
"""Of `tanbr pretrain --preset minilm`: three quarters of an hour on two cores."""

FLAN_T5 = MINILM.model_copy(
    update={
        "train_rows": 4_000, "batch": 5, "ancestor_steps": 60, "steps": 80, "warmup": 8, "ancestor_rate": 5e-4,
        "expert_rate": 7e-4, "shared_rate": 1e-4, "look_every": 0, "save_every": 40, "log_every": 2, "final_rows": 100,
    }
)  # fmt: skip
"""Of `tanbr pretrain --preset flan-t5`: a quarter of an hour on two busy cores; it shows the way, and is not good."""


class Config(Section):
    """The whole configuration, one section per stage."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    pretrain: PretrainConfig = Field(default_factory=PretrainConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)


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


def with_options(config: Config, **sections: dict[str, Any]) -> Config:
    """Put options of the command line, those that are not None, over a configuration."""
    values = config.model_dump()
    for section, options in sections.items():
        values[section] |= {name: value for name, value in options.items() if value is not None}
    return parse(values, source="options")


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
