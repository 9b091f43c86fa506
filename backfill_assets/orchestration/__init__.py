"""The Dagster shell: assets, checks, jobs and sensors around the use cases."""
