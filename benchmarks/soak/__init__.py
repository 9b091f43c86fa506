"""A soak: a complete installation runs for minutes, with random faults, judged by what readers have seen."""
