"""Which experts belong together: by their weights, by how a model's own gates use them, by what they earn."""
