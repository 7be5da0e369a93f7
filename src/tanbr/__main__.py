"""`python -m tanbr` is `tanbr`."""

from tanbr.cli import main

main()
