"""Text tasks: rows, metrics, traffic."""
