"""States of earlier versions of the router, brought to the names of this one."""

from collections.abc import Mapping
from typing import Any

from tanbr.state import Arrays

LAYOUT = 6  # written into the header; states without it are of layout 1
PANELS, ACCOUNTS, WATCH, LIFT, READ = 2, 3, 4, 5, 6  # came with panels, accounts, watch, fitted lift, panels' readings
FIRST_FIT = 80  # slots before which no earlier layout had fitted its kernel
FIT = ("width", "noise", "variance", "correlation")
GONE = {"forgetting"}  # settings of the default mode that earlier versions had


def settings_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """Give the settings that a router was saved with, as far as they still exist."""
    settings = dict(header["settings"])
    if "default" in (config := settings.get("config", {})):
        kept = {name: value for name, value in config["default"].items() if name not in GONE}
        settings["config"] = {**config, "default": kept}
    return settings


def migrated(policy: Arrays, like: Arrays, layout: int) -> Arrays:
    """Rename the arrays of a policy; `like` are those of a fresh one, for what was not written then."""
    fresh = {"posterior.lift": LIFT, "watch.": WATCH, "ledger.": ACCOUNTS}  # unknown to earlier ones
    old = {
        name: array for name, array in like.items()
        if any(name.startswith(part) and layout < first for part, first in fresh.items())
    } | policy  # fmt: skip
    if layout < READ:  # the last panel's readings were kept for all
        old = {name: array for name, array in old.items() if name not in ("misread", "inner.misread")}
    if layout < PANELS and "numbers" in old:
        old = _named(old, like)
    if layout < WATCH and "since" in like:  # fits were counted from the first slot on, and every slot taught alike
        fitted = old["slots"] if old["slots"] >= FIRST_FIT else like["fitted"]
        old |= {"learned": old["told"], "since": old["slots"], "fitted": fitted}
    return old


def _named(old: Arrays, like: Arrays) -> Arrays:
    """Give names to what layout 1 had in one array."""
    numbers = old.pop("numbers")
    if "posterior.fit" in old:  # the default router
        fit = old.pop("posterior.fit")
        old.pop("posterior.norms")
        old |= {f"posterior.{name}": fit[place] for place, name in enumerate(FIT)}
        slots, asked, told = numbers
        old |= {"slots": slots.astype("int64"), "asked": asked.astype("int64"), "told": told}
    else:  # Algorithm 1 and NUCB
        prefix = "belief." if any(name.startswith("belief.") for name in like) else ""
        if not prefix:  # NUCB kept a tree that it never used
            old = {name: array for name, array in old.items() if not name.startswith("tree.")}
        old = {name if name.startswith("tree.") else prefix + name: array for name, array in old.items()}
        old |= {f"{prefix}t": numbers[0].astype("int64"), f"{prefix}rate": numbers[1]}
        old = {name: array for name, array in like.items() if name.startswith(f"{prefix}Z.")} | old
    return old
