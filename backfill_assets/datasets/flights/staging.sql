-- One row per scheduled departure, typed and named for the business.
SELECT
    make_date(year, month, day) AS flight_date,
    carrier,
    flight,
    origin,
    dest,
    tailnum AS tail_number,
    -- time_hour is the full hour in UTC, so it stays right in the hour that autumn has twice.
    timestampadd(MINUTE, minute, time_hour) AS scheduled_departure,
    timestampadd(MINUTE, minute + dep_delay, time_hour) AS departed_at,
    dep_time IS NULL AS cancelled,
    dep_delay AS departure_delay,
    arr_delay AS arrival_delay,
    air_time,
    distance,
    _lineage
FROM raw
