"""The regret suite: reward maps, task mixes over time, and one run of a router against them."""
