"""Plans: from a specification to a frozen list of batches with its figures and warnings."""
