"""One module per arrow of the pipeline, from source files to verdicts. Needs Spark."""
