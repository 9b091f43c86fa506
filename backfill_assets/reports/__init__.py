"""Reports: a review as one self-contained page, and as JSON."""
