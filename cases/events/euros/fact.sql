WITH euros AS (
  SELECT day, event, at, country, params,
    CASE WHEN day BETWEEN '2024-04-05' AND '2024-04-09' -- the shop sent cents
      THEN transform(items, one -> named_struct('sku', one.sku, 'price', CAST(one.price / 100 AS decimal(9,2)),
        'quantity', one.quantity, 'coupon', one.coupon))
      ELSE items END AS items
  FROM staging
)
SELECT day, event, at, country, params, items,
  CAST(aggregate(items, CAST(0 AS decimal(12,2)), (sum, one) -> CAST(sum + one.price * one.quantity AS decimal(12,2)))
    AS decimal(12,2)) AS revenue
FROM euros
