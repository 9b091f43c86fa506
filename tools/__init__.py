"""Scripts for those who work on this project; none of them is in a wheel."""
