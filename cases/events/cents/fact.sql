SELECT day, event, at, country, params, items,
  CAST(aggregate(items, CAST(0 AS decimal(12,2)), (sum, one) -> CAST(sum + one.price * one.quantity AS decimal(12,2)))
    AS decimal(12,2)) AS revenue
FROM staging
