-- One row per day, carrier and airport.
SELECT
    flight_date,
    carrier,
    origin,
    count(*) AS departures,
    count_if(cancelled) AS cancelled,
    sum(CASE WHEN cancelled THEN 0 ELSE CAST(seats AS BIGINT) END) AS seats,
    sum(available_seat_miles) AS available_seat_miles,
    CAST(avg(departure_delay) AS DECIMAL(8, 2)) AS mean_departure_delay,
    CAST(percentile(departure_delay, 0.9) AS DECIMAL(8, 2)) AS p90_departure_delay
FROM flights
GROUP BY flight_date, carrier, origin
