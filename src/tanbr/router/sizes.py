"""How many experts, tasks and active experts a router is made for."""

from dataclasses import dataclass

import numpy as np

from tanbr.errors import InputError

MOST = 4096  # experts or tasks: a router compares all pairs of experts


def as_size(value: object, name: str, *, least: int, most: int | None = None) -> int:
    """Check that `value` is a whole number in its range."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {span} (got {value!r})")
    return int(value)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Sizes:
    """K, V and B of a router."""

    experts: int
    tasks: int
    max_active: int

    @classmethod
    def check(cls, experts: object, tasks: object, max_active: object = None) -> "Sizes":
        """Refuse sizes that make no router; without B, all experts may be active."""
        experts, tasks = as_size(experts, "experts", least=2, most=MOST), as_size(tasks, "tasks", least=1, most=MOST)
        return cls(
            experts, tasks, as_size(experts if max_active is None else max_active, "max_active", least=1, most=experts)
        )
