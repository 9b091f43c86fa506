"""Building days, and what they rest on: the road of a batch, its inputs, what is outdated and what came late."""
