"""How the task mix is estimated."""

from tanbr.config import Section


class MonitorConfig(Section):
    """How the task mix is estimated."""

    plain: bool = False
    """Read requests without case, marks and spacing, for traffic that is written otherwise than the history."""
