SELECT sold_on AS sale_date, store, article, pieces, price, _lineage
FROM raw
