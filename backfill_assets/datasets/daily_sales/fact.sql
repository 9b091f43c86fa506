-- An order has one priority, so its lines are never counted under two.
SELECT
    order_date,
    order_priority,
    count(DISTINCT order_id) AS orders,
    count(*) AS lines,
    CAST(sum(quantity) AS DECIMAL(18, 2)) AS quantity,
    CAST(sum(net_revenue) AS DECIMAL(24, 4)) AS net_revenue,
    CAST(sum(gross_revenue - net_revenue) AS DECIMAL(24, 6)) AS tax,
    CAST(sum(cost) AS DECIMAL(24, 4)) AS cost,
    CAST(sum(margin) AS DECIMAL(24, 4)) AS margin
FROM order_items
GROUP BY order_date, order_priority
