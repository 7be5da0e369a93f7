"""How the task mix is estimated."""

from pydantic import Field, field_validator

from tanbr.config import Section


class MonitorConfig(Section):
    """How the task mix is estimated."""

    plain: bool = False
    """Read requests without case, marks and spacing, for traffic that is written otherwise than the history."""
    sketch_width: int = Field(default=8192, ge=16)
    """Counters per hash function and task; a power of two."""
    history: int = Field(default=1024, ge=8)
    """Distinct texts per task that the classifier is calibrated on."""
    slot_sample: int = Field(default=4096, ge=64)
    """Distinct requests per slot that the mix is estimated from; a larger slot is sampled."""

    @field_validator("sketch_width")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two")
        return value


# A saved monitor goes on with these as it is asked to, but not with another way to read and count texts.
MAY_CHANGE = frozenset({"history", "slot_sample"})
