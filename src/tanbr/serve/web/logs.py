"""Structured logs: one JSON object a line on standard error. Texts of requests never appear in it."""

import json
import logging
import secrets
import sys
import time
from typing import Any, TextIO

from tanbr.types import to_jsonable

logger = logging.getLogger("tanbr")
LONGEST = 200  # characters of anything that a client chose


class JsonLines(logging.Formatter):
    """time, level, event, and whatever else was said about it."""

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line."""
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        line |= to_jsonable(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def to_stream(stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    """Send this package's logs, and uvicorn's errors, to a stream (standard error if None)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("tanbr", level), ("uvicorn", logging.ERROR)):
        one = logging.getLogger(name)
        one.handlers, one.propagate = [handler], False
        one.setLevel(least)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # malformed requests are the metrics' business


def say(event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Log an event."""
    logger.log(level, event, extra={"facts": facts})


def say_fault(text: str, *, error: BaseException | None = None) -> str:
    """Log what must not be told to a client, and give the id under which the log has it."""
    fault = secrets.token_hex(4)
    logger.error("fault", exc_info=error, extra={"facts": {"fault": fault, "text": text}})
    return fault


def say_request(*, status: int, path: str, seconds: float, **facts: Any) -> None:
    """Log a request; quiet unless the level is debug, or something broke."""
    level = logging.ERROR if status == 500 else logging.DEBUG
    if logger.isEnabledFor(level):
        say("request", level=level, status=status, path=path[:LONGEST], ms=round(1e3 * seconds, 2), **facts)
