SELECT s.day, s.session, s.at AS began_at,
       unix_timestamp(max(e.at)) - unix_timestamp(s.at) AS seconds
FROM staging AS s
JOIN staging AS e ON e.session = s.session AND e.day BETWEEN s.day AND date_add(s.day, 1)
WHERE s.event = 1
GROUP BY ALL
