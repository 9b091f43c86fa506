SELECT day, session, at AS began_at
FROM staging
WHERE event = 1
