"""One file a family: how an architecture lays out its experts."""
