SELECT ordered_on AS day, order_id, shop, amount, _lineage
FROM raw
