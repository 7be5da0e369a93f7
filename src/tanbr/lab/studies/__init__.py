"""Studies on made-up data, each a command of its own, as `python -m tanbr.lab.studies.regret --quick`."""
