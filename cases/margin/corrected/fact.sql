-- Of `costs`, each day sees the rows that are valid on it.
SELECT s.order_date, s.order_id, s.product,
       CAST(s.quantity * s.price AS DECIMAL(18, 2)) AS revenue,
       CAST(s.quantity * c.cost AS DECIMAL(18, 2)) AS cost,
       CAST((s.price - c.cost) / s.price AS DECIMAL(9, 4)) AS margin
FROM staging AS s
LEFT JOIN costs AS c ON c.product = s.product AND c.order_date = s.order_date
