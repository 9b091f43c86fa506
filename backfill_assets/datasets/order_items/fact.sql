-- What each line earned, after discount, and what it cost by the supplier's price list. Exact: no amount is rounded.
WITH amounts AS (
    SELECT
        s.*,
        CAST(s.price * (1 - s.discount) AS DECIMAL(18, 4)) AS net_revenue,
        CAST(s.quantity * c.ps_supplycost AS DECIMAL(18, 4)) AS cost
    FROM staging AS s
    LEFT JOIN partsupp AS c ON c.ps_partkey = s.part_id AND c.ps_suppkey = s.supplier_id
)
SELECT
    order_date,
    order_id,
    line_number,
    customer_id,
    part_id,
    supplier_id,
    order_priority,
    ship_mode,
    return_flag,
    quantity,
    price,
    discount,
    tax,
    net_revenue,
    CAST(net_revenue * (1 + tax) AS DECIMAL(18, 6)) AS gross_revenue,
    cost,
    CAST(net_revenue - cost AS DECIMAL(18, 4)) AS margin
FROM amounts
