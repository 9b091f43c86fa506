"""What readers see: publish, undo, keep true. Needs no Spark."""
