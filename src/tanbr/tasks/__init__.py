"""Text tasks: rows, metrics, cards, and rows of your own."""
