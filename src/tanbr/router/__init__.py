"""The algorithm: task mix in, blend out, learning from rewards. NumPy only."""
