-- Departures with the capacity that they offered: seats times distance, nothing for a cancelled one.
SELECT
    s.flight_date,
    s.carrier,
    a.name AS airline,
    s.flight,
    s.origin,
    s.dest,
    s.tail_number,
    s.scheduled_departure,
    s.departed_at,
    s.cancelled,
    s.departure_delay,
    s.arrival_delay,
    s.air_time,
    s.distance,
    p.seats,
    CASE WHEN s.cancelled THEN 0 ELSE p.seats * CAST(s.distance AS BIGINT) END AS available_seat_miles
FROM staging AS s
LEFT JOIN planes AS p ON p.tailnum = s.tail_number
LEFT JOIN airlines AS a ON a.carrier = s.carrier
