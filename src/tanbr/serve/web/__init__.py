"""The service over HTTP: a gate that refuses early, routes that are described in full, metrics, and a page to watch."""
