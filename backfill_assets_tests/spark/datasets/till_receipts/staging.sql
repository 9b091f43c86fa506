SELECT
    to_date(from_utc_timestamp(sold_at, 'America/New_York')) AS day,
    basket, product, household, store, quantity,
    CAST(sales_value AS decimal(12, 2)) AS revenue,
    _lineage
FROM raw
