"""Many replicas and one learner: what they say to each other, and how all of them change blends together."""
