SELECT ordered_on AS order_date, order_id, product, quantity, price, _lineage
FROM raw
