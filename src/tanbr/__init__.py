"""Serve a Mixture-of-Experts model at the cost of a dense one."""
