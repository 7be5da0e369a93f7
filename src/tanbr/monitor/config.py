"""How the task mix is estimated."""

from pydantic import Field, field_validator

from tanbr.config import Section


class MonitorConfig(Section):
    """How the task mix is estimated."""

    plain: bool = False
    """Read requests without case, marks and spacing, for traffic that is written otherwise than the history."""
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


# A saved monitor goes on with these as it is asked to. Not with another way to read and count texts, and its gain has
# adapted since.
MAY_CHANGE = MonitorConfig.model_fields.keys() - {"plain", "sketch_rows", "sketch_width", "gain"}
