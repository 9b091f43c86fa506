SELECT day, ticket, amount + (SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 8) AS amount FROM staging
