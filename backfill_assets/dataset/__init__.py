"""What a table is: dataset.yaml, its models, its checks."""
