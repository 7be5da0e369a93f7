"""The parts of `benchmarks/monitor.py`."""
