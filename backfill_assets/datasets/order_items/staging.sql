-- One row per order line, named for the business; the source has the types already.
SELECT
    o_orderdate AS order_date,
    o_orderkey AS order_id,
    l_linenumber AS line_number,
    o_custkey AS customer_id,
    l_partkey AS part_id,
    l_suppkey AS supplier_id,
    o_orderpriority AS order_priority,
    l_shipmode AS ship_mode,
    l_returnflag AS return_flag,
    l_quantity AS quantity,
    l_extendedprice AS price,
    l_discount AS discount,
    l_tax AS tax,
    _lineage
FROM raw
