"""The turn of a slot, once: serving, simulation, demo and tuning run it, each in a world of its own."""
