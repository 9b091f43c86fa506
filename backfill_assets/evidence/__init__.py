"""Where building and releasing meet: what a day rests on, and what a unit is missing."""
