SELECT CAST(at AS DATE) AS day, event, at, user.country AS country, params, items, _lineage
FROM raw
