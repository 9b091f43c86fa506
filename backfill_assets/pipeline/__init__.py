"""The pipeline from source files to verdicts, one module per step. Needs Spark."""
