SELECT day, ticket, amount, _lineage FROM raw
