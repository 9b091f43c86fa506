SELECT day, count(*) AS ticket, sum(amount) AS amount FROM trips GROUP BY day
