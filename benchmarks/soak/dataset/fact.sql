SELECT day, ticket, amount FROM staging
