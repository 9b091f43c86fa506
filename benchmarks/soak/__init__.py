"""A soak: a whole installation at work for minutes, with faults at random, judged by what readers have seen."""
