SELECT CAST(at AS DATE) AS day, session, event, at, _lineage
FROM raw
