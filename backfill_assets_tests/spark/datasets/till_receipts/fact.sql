SELECT
    day, basket, product, household, store, department, category, brand, quantity,
    revenue,
    CAST(revenue * rate AS decimal(12, 4)) AS tax
FROM staging
LEFT JOIN products USING (product)
JOIN tax_rates USING (day)
