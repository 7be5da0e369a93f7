"""The parts by name, in the paper's order."""

import difflib

from tanbr.errors import ConfigError
from tanbr.lab.paper import fig2, fig3, fig4, fig5, fig6, fig7, table1, table2, theorem1
from tanbr.lab.paper.part import Part

PARTS: dict[str, Part] = {
    module.PART.name: module.PART for module in (table1, fig2, fig3, table2, fig4, fig5, fig6, fig7, theorem1)
}
ALL = "all"


def chosen(names: list[str]) -> list[Part]:
    """Find parts by their names, in the paper's order; all of them for `all`, or for none."""
    for name in names:
        if name not in (*PARTS, ALL):
            near = difflib.get_close_matches(name, (*PARTS, ALL), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"unknown table or figure {name!r}; {hint}there are {', '.join(PARTS)}, and {ALL}")
    wanted = PARTS if not names or ALL in names else names
    return [part for name, part in PARTS.items() if name in wanted]
