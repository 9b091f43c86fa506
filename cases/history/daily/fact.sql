SELECT day, order_id, shop, amount
FROM staging
