"""The slot loop and what surrounds it."""
