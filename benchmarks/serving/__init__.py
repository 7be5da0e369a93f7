"""Parts of `benchmarks/serve.py`: processes, a light client, rivals, and one module per kind of measurement."""
