"""Source files are read exactly as they are, and a new declaration also applies to files that have already landed.

A text that a declared type cannot hold completely is quarantined; another spelling of the same value is not.
"""

from __future__ import annotations

import codecs
import datetime as dt
import gzip
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from backfill_assets.application import Application
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.references import Reference
from backfill_assets.pipeline.run_models import read_file
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, Kit, values

TYPES = {
    "n": "integer", "l": "long", "d": "decimal(9,2)", "w": "decimal(38,2)", "f": "double", "day": "date", "at": "timestamp",
    "flag": "boolean", "s": "string",
}  # fmt: skip
UTC = dt.UTC
MAY = dt.date(2024, 5, 1)
WIDE = "123456789012345678901234567890123456.78"
KEPT: list[tuple[str, str, object]] = [
    ("n", "007", 7), ("n", "+5", 5), ("n", "1e3", 1000), ("n", "4.0", 4), ("n", " 12 ", 12), ("n", "-2147483648", -(2**31)),
    ("l", "9223372036854775807", 2**63 - 1), ("l", "12300e-2", 123),
    ("d", "4.500", Decimal("4.50")), ("d", "1e3", Decimal("1000.00")), ("d", ".5", Decimal("0.50")), ("d", "5.", Decimal("5.00")),
    ("d", "450e-2", Decimal("4.50")), ("d", "-0", Decimal("0.00")), ("d", "0e-999", Decimal("0.00")),
    ("w", WIDE, Decimal(WIDE)), ("w", "1.00000", Decimal("1.00")),
    ("f", "0.1", 0.1), ("f", "1E-3", 0.001), ("f", "-Infinity", float("-inf")),
    ("f", "12345678901234567890", 12345678901234567890.0),
    ("f", "0e-999", 0.0),
    ("day", "2024-05-01", MAY), ("day", "2024-5-1", MAY), ("day", " 2024-05-01", MAY), ("day", "2024-05-01T00:00:00", MAY),
    ("at", "2024-05-01", dt.datetime(2024, 5, 1, tzinfo=UTC)),
    ("at", "2024-05-01 12:30", dt.datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
    ("at", "2024-05-01T12:30:05.123456000Z", dt.datetime(2024, 5, 1, 12, 30, 5, 123456, tzinfo=UTC)),
    ("at", "2024-05-01T12:30:05+02:00", dt.datetime(2024, 5, 1, 10, 30, 5, tzinfo=UTC)),
    ("at", "2024-05-01 12:30:05 Europe/Berlin", dt.datetime(2024, 5, 1, 10, 30, 5, tzinfo=UTC)),
    ("flag", "True", True), ("flag", "false", False),
    ("s", " as it came ", " as it came "), ("s", "K\u00f6ln", "K\u00f6ln"), ("s", "\ufffd", "\ufffd"), ("s", "1.10", "1.10"),
]  # fmt: skip
LOST: list[tuple[str, str]] = [
    ("n", "2.5"), ("n", "2147483648"), ("n", "1e10"), ("n", "0x1F"), ("n", "\u0661"), ("n", "1 2"),
    ("n", "12\x01"), ("l", "\x1f12"), ("l", "12\x7f"),
    ("l", "9223372036854775808"), ("l", "1e-1"),
    ("d", "4.5049"), ("d", "4.505"), ("d", "10000000"), ("d", "45049e-4"), ("d", "1,5"), ("d", "1e999"), ("d", "1e-999999999"),
    ("d", "NaN"), ("d", "9" * 500), ("w", "0.001"), ("w", WIDE + "1"), ("w", "1e36"),
    ("f", "1e999"), ("f", "1e-999"), ("f", "1.5d"), ("f", "0x1p3"), ("f", "9" * 400),
    ("day", "2024"), ("day", "2024-05"), ("day", "2024-05-01 rubbish"), ("day", "2024-05-01T12:00:00"), ("day", "2024-02-30"),
    ("day", "20240501"), ("day", "0000-01-01"), ("day", "today"), ("day", "12024-05-01"),
    ("at", "2024"), ("at", "12:30"), ("at", "2024-05-01 rubbish"), ("at", "2024-05-01 12:30:05.1234567"), ("at", "1714566605"),
    ("at", "2024-05-01 25:00:00"), ("at", "2024-05-01 12:30:05 Mars"),
    ("flag", "yes"), ("flag", "1"),
]  # fmt: skip
BYTES = b"K\xf6ln"
"""No UTF-8."""


@dataclass(frozen=True)
class Read:
    """The result of one landing of all cases: for each case the value and the quarantined line."""

    delivery: Delivery
    rows: dict[str, tuple[object, str | None]]

    def of(self, number: int, column: str) -> object:
        return self.rows[f"{column}{number}"]


def landed(kit: Kit, fmt: str, lines: list[bytes]) -> Read:
    columns = {"id": "string", **TYPES}
    loaded = kit.dataset(name=f"cases_{fmt}", source={"format": fmt, "path": f"{fmt}/{{day}}*", "columns": columns})
    kit.put(f"{fmt}/{D1}.{fmt}", b"\n".join(lines) + b"\n")
    (delivery,) = kit.land(loaded, D1)
    rows = {}
    for row in kit.raw(loaded).select("*").collect():
        value = next((row[name] for name in TYPES if row[name] is not None), None)
        stamped = value.replace(tzinfo=UTC) if isinstance(value, dt.datetime) else value
        corrupt = row["_corrupt_record"]
        rows[row["id"] if corrupt is None else corrupt] = (stamped, corrupt)
    return Read(delivery, rows)


def csv_line(case: str, column: str, text: str) -> str:
    quoted = '"' + text + '"' if "," in text else text
    return ",".join([case, *(quoted if name == column else "" for name in TYPES)])


def test_csv_keeps_what_a_type_can_hold_and_quarantines_what_would_be_lost(module_kit: Kit) -> None:
    kept = {f"{column}{i}": csv_line(f"{column}{i}", column, text) for i, (column, text, _) in enumerate(KEPT)}
    lost = [csv_line("lost", column, text) for column, text in LOST]
    header = ",".join(["id", *TYPES])
    bad = [b"latin,,,,,,,,," + BYTES, b"cut,1", b"more,,,,,,,,,x,y", b"wide" + b"," * 50_000]
    bad += [b"nul,,,,,,,,,a\0b", b"zeros,1,2,,,,,,,\0\0\0"]
    # An open quote that is never closed continues in the next line, or was cut.
    bad += [b'open,,,,,,,,,"They said:', b'open too,,,,,,,,,"a ""quoted"" one, and']
    lines = [header.encode(), *(line.encode() for line in (*kept.values(), *lost)), *bad]
    read = landed(module_kit, "csv", lines)
    assert {case: read.rows[case] for case in kept if case in read.rows} == {
        f"{column}{i}": (value, None) for i, (column, _, value) in enumerate(KEPT)
    }
    assert [line for line in lost if line not in read.rows] == []
    assert (read.delivery.rows, read.delivery.corrupt_rows) == (len(lines) - 1, len(lost) + len(bad))
    # The lines themselves are shown; U+FFFD replaces bytes that are no characters.
    assert "latin,,,,,,,,,K\ufffdln" in read.rows


def test_the_header_of_a_file_that_was_appended_to_another_is_no_row(kit: Kit) -> None:
    loaded = kit.dataset(source=source(OLD))
    content, mark = b"id,amount\n1,a\n", codecs.BOM_UTF8
    kit.put(f"trips/{D1}.csv", content * 2)
    kit.put(f"trips/{D2}.csv", (mark + content) * 2)
    kit.put(f"trips/{D3}.csv.gz", gzip.compress(content) + gzip.compress(mark + content))
    assert [(d.rows, d.corrupt_rows) for d in kit.land(loaded, D1, D2, D3)] == [(3, 1)] * 3
    assert values(kit.raw(loaded).where("_corrupt_record IS NULL"), "id", "amount") == [("1", "a")] * 6


def test_the_same_holds_for_json_lines_and_each_is_one_object(module_kit: Kit) -> None:
    whole = {"id": "whole", **dict.fromkeys(TYPES)}
    kept = {f"{column}{i}": {"id": f"{column}{i}", column: text} for i, (column, text, _) in enumerate(KEPT)}
    lost = [json.dumps({"id": "lost", column: text}, ensure_ascii=False) for column, text in LOST]
    numbers = {
        "exact": ('{"id": "exact", "w": ' + WIDE + "}", Decimal(WIDE)),
        "text": ('{"id": "text", "s": 1.10}', "1.10"),
        "nested": ('{"id": "nested", "s": {"a": [1.10, "2.0"]}}', '{"a":[1.10,"2.0"]}'),
        "cased": ('{"ID": "cased", "N": 5}', 5),
        "escaped": ('{"id": "escaped", "s": "a \\"1\\" \\u00e9"}', 'a "1" \u00e9'),
    }
    bad = [
        '{"id": "twice", "n": 1, "n": 2}', '{"id": "cased twice", "n": 1, "N": 1}', '{"id": "two"}{"id": "objects"}',
        '{"id": "rubbish"} rubbish', '{"id": "closed"}}', '{"id": "cut"', "[{}, {}]", "null", '"text"', "{'id': 'other quotes'}",
        '{"id": "x", "s": "\\ud800"}', '{"id": "x", "d": 4.5049}', '{"id": "x", "n": 2.5}', '{"id": "x", "f": 1e-999}',
        '{"id": "x", "at": 1714566605}', '{"id": "x", "n": ""}', '{"id": "x"},"s":"behind it"', '{"id": "x"},{"id": "y"}',
        '{"id": "x"}],"line":[{"id": "y"}', '{"id": "x"}]},"line":{"x":[{"id": "y"}', '{"id": "x", "s": "\\uFDD0"}',
        '{"id": "x", "n": 12}\0\0',
    ]  # fmt: skip
    texts = [json.dumps(whole), *(json.dumps(row, ensure_ascii=False) for row in kept.values())]
    lines = [*texts, *(line for line, _ in numbers.values()), *lost, *bad]
    read = landed(
        module_kit, "jsonl", [*(line.encode() for line in lines), b'{"id": "latin", "s": "' + BYTES + b'"}', b" "]
    )
    expected = {f"{column}{i}": (value, None) for i, (column, _, value) in enumerate(KEPT)}
    expected |= {case: (value, None) for case, (_, value) in numbers.items()}
    assert {case: read.rows.get(case) for case in expected} == expected
    assert [line for line in (*lost, *bad) if line not in read.rows] == []
    assert (read.delivery.rows, read.delivery.corrupt_rows) == (len(lines) + 1, len(lost) + len(bad) + 1)


def test_a_reference_refuses_the_same_whatever_columns_are_read(kit: Kit) -> None:
    columns = {"k": "string", "d": "decimal(9,2)"}
    reference = Reference.model_validate(
        {"format": "csv", "path": "r.csv", "columns": columns, "encoding": "windows-1252"}
    )
    file = kit.put("r.csv", "k,d\n\u20ac,4.500\n".encode("windows-1252"))
    assert values(read_file(kit.spark, reference, OnDisk(file), "r.csv"), "k", "d") == [("\u20ac", Decimal("4.50"))]
    file.write_bytes(b"k,d\na,4.5049\n")
    with pytest.raises(PySparkException, match=r"r\.csv: a row cannot be read as dataset.yaml declares it: a,4.5049"):
        read_file(kit.spark, reference, OnDisk(file), "r.csv").select("k").collect()
    file.write_bytes(b"\n")
    with pytest.raises(SourceError, match=r"r\.csv: it has no header, so it is incomplete"):
        read_file(kit.spark, reference, OnDisk(file), "r.csv")
    file.write_bytes(b"k,d\n")
    assert read_file(kit.spark, reference, OnDisk(file), "r.csv").count() == 0


OLD = {"id": "string", "amount": "string"}


def source(columns: Mapping[str, object], fmt: str = "csv", **more: object) -> dict[str, object]:
    return {"format": fmt, "path": "trips/{day}*", "columns": columns, **more}


def declared(kit: Kit, observed: dict[str, object], *names: str) -> Application:
    """The dataset `trips` with this source; staging passes these columns through."""
    shown = ", ".join(names)
    kit.dataset(
        staging=f"SELECT DATE'{D1}' AS day, CAST(id AS INT) AS id, {shown}, _lineage FROM raw",
        fact="SELECT day, id, CAST(NULL AS STRING) AS kind, 1D AS amount, CAST(NULL AS DECIMAL(12,2)) AS fee FROM staging",
        source=observed,
    )
    return Application(kit.settings)


def test_a_new_declaration_applies_to_landed_files_without_their_source(kit: Kit) -> None:
    names = {"id": "string", "note": "string", "amount": "string"}
    lines = b"1;NA;4.50;x\n2;b;4.5049;y\n3;K\xf6ln;1;z\n"
    file = kit.put(f"trips/{D1}.csv", lines)
    first = declared(kit, source(OLD, csv={"header": False}), "amount")
    first.pipeline.land(kit.spark, "trips", (D1,))
    assert [(d.rows, d.corrupt_rows) for d in first.ledger.deliveries("trips", [D1])] == [(3, 3)]
    before = first.basis.inputs("trips", [D1])
    file.unlink()
    # Another delimiter, encoding, null value and order, and a column that was not declared.
    more = {**names, "more": "string"}
    csv = {"header": False, "delimiter": ";", "null_value": "NA"}
    now = declared(kit, source(more, csv=csv, encoding="latin-1"), "note", "amount", "more")
    assert now.pipeline.days_to_land("trips", (D1,)) == (D1,)
    assert now.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 3}
    assert [(d.rows, d.corrupt_rows) for d in now.ledger.deliveries("trips", [D1])] == [(3, 0)]
    assert now.pipeline.days_to_land("trips", (D1,)) == ()
    assert now.basis.inputs("trips", [D1]) != before
    loaded = now.datasets["trips"]
    expected = [(1, None, "4.50", "x"), (2, "b", "4.5049", "y"), (3, "K\u00f6ln", "1", "z")]
    assert values(kit.staged(loaded), "id", "note", "amount", "more") == expected
    # Another type: values that it cannot hold are counted.
    shutil.rmtree(path_of(kit.layout.staging_path("trips")))
    typed = declared(kit, source({**more, "amount": "decimal(9,2)"}, csv=csv, encoding="latin-1"), "amount")
    assert typed.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 2}
    assert [(d.rows, d.corrupt_rows) for d in typed.ledger.deliveries("trips", [D1])] == [(3, 1)]


def test_a_column_that_is_declared_in_mid_history_is_filled_from_files_that_have_it_or_named_as_missing(
    kit: Kit,
) -> None:
    kit.put(f"trips/{D1}.csv", "id,note\n1,old\n")
    kit.put(f"trips/{D2}.csv", "id\n2\n")
    first = declared(kit, source({"id": "string"}), "id AS own")
    first.pipeline.land(kit.spark, "trips", (D1, D2))
    columns = {"id": "string", "note": "string"}
    strict = declared(kit, source(columns), "note")
    assert strict.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    assert values(kit.staged(strict.datasets["trips"]), "id", "note") == [(1, "old")]
    with pytest.raises(SourceError, match=rf"trips/{D2}.csv: its header does not name note; .*source.optional"):
        strict.pipeline.land(kit.spark, "trips", (D2,))
    tolerant = declared(kit, source(columns, optional=["note"]), "note")
    tolerant.pipeline.land(kit.spark, "trips", (D1, D2))
    assert values(kit.raw(tolerant.datasets["trips"]), "id", "note") == [("1", "old"), ("2", None)]


def test_a_json_key_without_any_record_is_refused_by_name_also_when_it_is_declared_later(kit: Kit) -> None:
    kit.put(f"trips/{D1}.jsonl", '{"id": 1, "price": 2}\n{"id": 2}\n')
    with pytest.raises(SourceError, match=rf"trips/{D1}.jsonl: none of its records has amount; .*found id, price"):
        declared(kit, source(OLD, "jsonl"), "amount").pipeline.land(kit.spark, "trips", (D1,))
    declared(kit, source({"id": "string", "price": "string"}, "jsonl"), "price").pipeline.land(
        kit.spark, "trips", (D1,)
    )
    with pytest.raises(SourceError, match=rf"trips/{D1}.jsonl: none of its records has amount; correct source.columns"):
        declared(kit, source(OLD, "jsonl"), "amount").pipeline.land(kit.spark, "trips", (D1,))


def test_undeclared_columns_are_dropped_where_the_dataset_says_so_and_come_from_the_source_later(kit: Kit) -> None:
    file = kit.put(f"trips/{D1}.csv", 'id,secret,amount\n1,Ada,"4,""5"\n2,Bob\n')
    observed = source(OLD, undeclared="drop")
    application = declared(kit, observed, "amount")
    application.pipeline.land(kit.spark, "trips", (D1,))
    rows = kit.table(path_of(kit.layout.raw_path("trips"))).select("_line", "_header").collect()
    assert sorted(bytes(row["_line"]).decode() for row in rows if row["_line"]) == ['{"id":"1","amount":"4,\\"5"}']
    assert [row["_header"] for row in rows] == [None, None]
    loaded = application.datasets["trips"]
    assert values(kit.raw(loaded).where("_corrupt_record IS NULL"), "id", "amount") == [("1", '4,"5')]
    assert [(d.rows, d.corrupt_rows) for d in application.ledger.deliveries("trips", [D1])] == [(2, 1)]
    aside = file.rename(kit.root / "aside")
    more = declared(kit, source({**OLD, "secret": "string"}, undeclared="drop"), "secret")
    with pytest.raises(
        SourceError, match=rf"trips/{D1}.csv: it was landed when .* Put exactly this file back among the sources"
    ):
        more.pipeline.stage(kit.spark, "trips", (D1,))
    aside.rename(file)
    more.pipeline.land(kit.spark, "trips", (D1,))
    assert values(kit.raw(more.datasets["trips"]).where("_corrupt_record IS NULL"), "id", "secret") == [("1", "Ada")]


HEADED: dict[str, object] = {
    "id": {"from": "Invoice No", "type": "string"}, "amount": {"from": "Betrag, \u20ac", "type": "string"}, "note": "string",
}  # fmt: skip
TURNED: dict[str, object] = {
    **HEADED, "id": {"from": "Betrag, \u20ac", "type": "string"}, "amount": {"from": "Invoice No", "type": "string"},
}  # fmt: skip


def headed(kit: Kit, fmt: str, ending: str = "") -> Path:
    """A file with headers as people have them, and with a column that is called like a column of the dataset."""
    rows = {"note": ["n"], "BETRAG, \u20ac": ["2"], "invoice no": ["1"], "amount": ["wrong"], "a.`b": ["x"]}
    file = kit.put(f"trips/{D1}.{fmt}{ending}", "")
    if fmt == "parquet":
        pq.write_table(pa.table(rows), file)
        return file
    text = json.dumps({name: value for name, (value,) in rows.items()}, ensure_ascii=False) + "\n"
    if fmt == "csv":
        lines = ([*rows], [value for (value,) in rows.values()])
        text = "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)
    return kit.put(f"trips/{D1}.{fmt}{ending}", gzip.compress(text.encode()) if ending else text.encode())


@pytest.mark.parametrize("drop", [False, True], ids=["keep", "drop"])
@pytest.mark.parametrize(("fmt", "ending"), [("csv", ""), ("csv", ".gz"), ("jsonl", ".gz"), ("parquet", "")])
def test_a_column_is_read_from_the_header_that_it_names_and_again_from_another(
    fmt: str,
    ending: str,
    drop: bool,  # noqa: FBT001
    kit: Kit,
) -> None:
    if drop and fmt == "parquet":
        return
    more = {"undeclared": "drop"} if drop else {}
    file = headed(kit, fmt, ending)
    first = declared(kit, source(HEADED, fmt, **more), "amount")
    first.pipeline.land(kit.spark, "trips", (D1,))
    loaded = first.datasets["trips"]
    assert values(kit.raw(loaded), "id", "amount", "note") == [("1", "2", "n")]
    assert [(d.rows, d.corrupt_rows) for d in first.ledger.deliveries("trips", [D1])] == [(1, 0)]
    before = first.basis.inputs("trips", [D1])
    aside = file.rename(kit.root / "aside")
    now = declared(kit, source(TURNED, fmt, **more), "amount")
    assert now.pipeline.days_to_land("trips", (D1,)) == (D1,)
    if drop or fmt == "parquet":
        # Raw has only the values that were read when the file landed.
        with pytest.raises(SourceError, match="Put exactly this file back among the sources"):
            now.pipeline.stage(kit.spark, "trips", (D1,))
        aside.rename(file)
    now.pipeline.land_what_is_there(kit.spark, "trips", (D1,))
    assert values(kit.raw(now.datasets["trips"]), "id", "amount", "note") == [("2", "1", "n")]
    assert now.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    assert values(kit.staged(now.datasets["trips"]), "id", "amount") == [(2, "1")]
    assert now.basis.inputs("trips", [D1]) != before


@pytest.mark.parametrize(
    ("fmt", "refusal"), [("csv", "its header does not name Note 2"), ("jsonl", "none of its records has Note 2")]
)
def test_a_header_that_is_declared_later_and_missing_is_named_without_the_file(
    fmt: str, refusal: str, kit: Kit
) -> None:
    file = headed(kit, fmt)
    declared(kit, source(HEADED, fmt), "amount").pipeline.land(kit.spark, "trips", (D1,))
    file.unlink()
    missing = {**HEADED, "note": {"from": "Note 2", "type": "string"}}
    with pytest.raises(SourceError, match=refusal):
        declared(kit, source(missing, fmt), "amount").pipeline.land_what_is_there(kit.spark, "trips", (D1,))


@pytest.mark.parametrize(
    "header",
    ["\u0130stanbul", "\u03a3\u0391\u03a3", "STRA\u1e9eE", "\u01c4", "\u212a", "a.b`c", 'x"y', "$[0].a", "%s{}"],
)
@pytest.mark.parametrize("fmt", ["csv", "jsonl", "parquet"])
def test_every_header_that_is_not_refused_can_be_read(fmt: str, header: str, module_kit: Kit) -> None:
    """Python checks a file and Spark reads it: both must find the same column, or its values are null without any report."""
    kit, columns = module_kit, {"h": {"from": header, "type": "string"}, "id": "string"}
    reference = Reference.model_validate({"format": fmt, "path": "r", "columns": columns})
    for found in dict.fromkeys((header, header.lower(), header.upper())):
        if found.lower() != header.lower():
            continue
        file = kit.put("r", "")
        if fmt == "parquet":
            pq.write_table(pa.table({"id": ["1"], found: ["v"]}), file)
        elif fmt == "jsonl":
            file.write_text(json.dumps({"id": "1", found: "v"}, ensure_ascii=False) + "\n", encoding="utf-8")
        else:
            quoted = found.replace('"', '""')
            file.write_text(f'id,"{quoted}"\n1,v\n', encoding="utf-8")
        assert values(read_file(kit.spark, reference, OnDisk(file), "r"), "h", "id") == [("v", "1")]


def test_parquet_is_read_again_from_its_source_and_named_as_missing_without_it(kit: Kit) -> None:
    file = kit.put(f"trips/{D1}.parquet", "")
    pq.write_table(pa.table({"id": ["1"], "note": ["n"]}), file)
    declared(kit, source({"id": "string"}, "parquet"), "id AS own").pipeline.land(kit.spark, "trips", (D1,))
    aside = file.rename(kit.root / "aside")
    now = declared(kit, source({"id": "string", "note": "string"}, "parquet"), "note")
    with pytest.raises(SourceError, match="Put exactly this file back among the sources"):
        now.pipeline.stage(kit.spark, "trips", (D1,))
    aside.rename(file)
    assert now.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    assert values(kit.staged(now.datasets["trips"]), "note") == [("n",)]
    # Later, raw cannot distinguish a missing column of a file from delivered nulls.
    with_more = {"id": "string", "note": "string", "more": "string"}
    lenient = declared(kit, source(with_more, "parquet", optional=["more"]), "more")
    assert lenient.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    with pytest.raises(SourceError, match="more"):
        declared(kit, source(with_more, "parquet"), "more").pipeline.stage(kit.spark, "trips", (D1,))
    # A day without any landed file, and a text column that no file had yet.
    later = declared(kit, source({"id": "string", "note": "string", "more": "string"}, "parquet"), "more")
    assert later.pipeline.stage(kit.spark, "trips", (D3,)) == {D3: 0}
    assert later.pipeline.days_to_stage("trips", (D3,)) == ()


def test_raw_in_another_layout_is_refused_with_the_way_out(kit: Kit) -> None:
    loaded = kit.dataset(source=source({"id": "string"}))
    kit.put(f"trips/{D1}.csv", "id\n1\n")
    kit.spark.sql(f"SELECT DATE'{D1}' AS _delivery_day, '1' AS id, 'x' AS _source_file").write.format("delta").save(
        str(path_of(kit.layout.raw_path("trips")))
    )
    with pytest.raises(SourceError, match=r"raw does not keep lines, as of text files\. Move this folder away"):
        kit.land(loaded, D1)
