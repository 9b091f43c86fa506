SELECT sale_date, store, article, pieces, CAST(pieces * price AS DECIMAL(20, 2)) AS revenue
FROM staging
