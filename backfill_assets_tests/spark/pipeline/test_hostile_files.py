"""Broken and hostile source files, many in each run: landed and counted, or refused by name with nothing written."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
from collections.abc import Mapping
from functools import partial
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.land import land
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.spark.pipeline.kit import D1, D2, NOW, Kit, commits, values

gzipped = partial(gzip.compress, mtime=0)
"""The same bytes each time: all processes of a test run must collect the same cases."""
HEADER = "day,id,kind,amount,fee\n"
ROW = f"{D1},1,a,1.5,2.25\n"
GOOD = {"day": str(D1), "id": 1, "kind": "a", "amount": 1.5, "fee": 2.25}
INJECTION = "'); DROP TABLE raw; -- ` \" \\ ${x} %s"
CSV: Mapping[str, bytes] = {
    "cut": (HEADER + ROW * 3)[:-9].encode(),
    "nul": (HEADER + f"{D1},1,a\0b,1,1\n").encode(),
    "latin": HEADER.encode() + f"{D1},1,caf\u00e9,1,1\n".encode("latin-1"),
    "open_quote": (HEADER + f'{D1},1,"never closed,1,1\n' + ROW).encode(),
    "long_line": (HEADER + f"{D1},1,{'x' * 2_000_000},1,1\n").encode(),
    "many_cells": (HEADER + "," * 5_000 + "\n").encode(),
    "more_than_spark_takes": (HEADER + "," * 50_000 + "\n").encode(),
    "dates": (
        HEADER + "".join(f"{day},1,a,1,1\n" for day in ("0000-00-00", "99999-01-01", "2024-02-30", "-1", "today"))
    ).encode(),
    "numbers": (
        HEADER + "".join(f"{D1},{n},a,{n},{n}\n" for n in ("9" * 400, "1e999", "NaN", "-Infinity", "0x1F", "\u0661"))
    ).encode(),
    "sql": (HEADER + f'{D1},1,"{INJECTION.replace(chr(34), chr(34) * 2)}",1,1\n').encode(),
    "bidi": (HEADER + f"{D1},1,\u202ea\u2066,1,1\n").encode(),
    "carriage_returns": (HEADER + ROW * 2).replace("\n", "\r\n").encode(),
    "binary": HEADER.encode() + bytes(range(256)) * 20,
}
JSON: Mapping[str, bytes] = {
    "cut": json.dumps(GOOD).encode()[:-20],
    "cut_later": (json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:15]).encode(),
    "list": json.dumps([GOOD, GOOD]).encode(),
    "scalars": b'1\n"a"\nnull\ntrue\n',
    "deep": ("[" * 5_000 + "]" * 5_000).encode(),
    "deep_kind": ('{"kind": ' + '{"a": ' * 900 + "1" + "}" * 901).encode(),
    "long": json.dumps({**GOOD, "kind": "x" * 2_000_000}).encode(),
    "nul": b'{"id": 1, "kind": "a\0b"}\n\0\0\0\n{"id": 2}\n',
    "twice": b'{"id": 1, "id": 2, "kind": "a"}',
    "other_types": json.dumps({"day": {}, "id": [1], "kind": {"a": 1}, "amount": "x", "fee": True}).encode(),
    "numbers": b'{"id": 1e999}\n{"id": 99999999999999999999}\n{"amount": NaN}\n{"amount": -1e-999}\n',
    "latin": '{"kind": "caf\u00e9"}'.encode("latin-1"),
    "utf_16": json.dumps(GOOD).encode("utf-16"),
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "sql": json.dumps({**GOOD, "kind": INJECTION}).encode(),
    "surrogates": b'{"kind": "\\ud800"}\n{"kind": "\\udc00\\ud800x"}',
    "binary": bytes(range(256)) * 20,
    "blank": b"\n\n",
    "empty": b"",
}
COLUMNS = {"day": "date", "id": "integer", "kind": "string", "amount": "double", "fee": "decimal(12,2)"}


def source(fmt: str, **csv: object) -> dict[str, object]:
    return {"format": fmt, "path": "trips/{day}*", "columns": COLUMNS, **({"csv": csv} if csv else {})}


def zstd(content: bytes) -> bytes:
    return cast("bytes", pa.compress(content, "zstd", asbytes=True))


def unwritten(kit: Kit) -> bool:
    return not list(path_of(kit.layout.raw_path("trips")).glob("_delta_log/*.json"))


def refused(kit: Kit, loaded: LoadedDataset, name: str) -> None:
    with pytest.raises(SourceError, match=name) as refusal:
        kit.land(loaded, D1)
    assert "Traceback" not in str(refusal.value)
    assert len(str(refusal.value)) < 4_000
    assert unwritten(kit)


@pytest.mark.parametrize(("fmt", "files"), [("csv", CSV), ("jsonl", JSON)])
def test_every_broken_file_is_landed_with_its_bad_rows_counted_and_the_good_ones_kept(
    fmt: str, files: Mapping[str, bytes], kit: Kit
) -> None:
    loaded = kit.dataset(source={**source(fmt), "optional": list(COLUMNS) if fmt == "jsonl" else []})
    for name, content in files.items():
        kit.put(f"trips/{D1}-{name}.{fmt}", content)
    good = (HEADER + ROW).encode() if fmt == "csv" else json.dumps(GOOD).encode()
    kit.put(f"trips/{D2}.{fmt}", good)
    deliveries = {d.path.removeprefix(f"trips/{D1}-").removesuffix(f".{fmt}"): d for d in kit.land(loaded, D1, D2)}
    assert len(deliveries) == len(files) + 1
    counts = {name: (d.rows, d.corrupt_rows) for name, d in deliveries.items()}
    assert counts[f"trips/{D2}"] == (1, 0)
    assert fmt == "csv" or counts["blank"] == counts["empty"] == (0, 0)
    assert counts["sql"] == (1, 0)
    assert counts["cut"][1] >= 1
    assert fmt == "jsonl" or counts["more_than_spark_takes"] == (1, 1)
    assert counts["binary"][0] == counts["binary"][1] > 0
    assert commits(path_of(kit.layout.raw_path("trips"))) == 1
    assert (INJECTION,) in values(kit.raw(loaded).where(f"_source_file = 'trips/{D1}-sql.{fmt}'"), "kind")
    assert kit.land(loaded, D1, D2) == tuple(deliveries.values())


def test_a_file_without_its_header_is_refused_for_its_day_and_beside_complete_ones(kit: Kit) -> None:
    loaded = kit.dataset(source=source("csv"))
    kit.deliver(D1, f"{D1},1,a,1.5,2.25", part="-a")
    file = kit.put(f"trips/{D1}-b.csv", b"")
    refused(kit, loaded, rf"trips/{D1}-b\.csv: it has no header, so it is incomplete; deliver it again")
    file.write_text(HEADER)
    assert [d.rows for d in kit.land(loaded, D1)] == [1, 0]


def damaged(kit: Kit) -> dict[str, bytes]:
    out = io.BytesIO()
    table = pa.table(
        {
            "day": pa.array([D1]), "id": pa.array([1], pa.int32()), "kind": pa.array(["a"]),
            "amount": pa.array([1.5]), "fee": pa.array([None], pa.decimal128(12, 2)),
        }
    )  # fmt: skip
    pq.write_table(table, out, compression="none")
    whole = out.getvalue()
    turned = bytearray(whole)
    turned[4:60] = b"\xff" * 56
    return {
        "cut": whole[:-20], "half": whole[: len(whole) // 2], "tail": whole[-40:], "magic": b"PAR1" * 5, "empty": b"",
        "csv": (HEADER + ROW).encode(), "turned": bytes(turned), "footer": whole[:-12] + b"\xff\xff\xff\x7f" + whole[-8:],
    }  # fmt: skip


def test_every_broken_parquet_file_is_refused_by_name_and_nothing_is_written(kit: Kit) -> None:
    loaded = kit.dataset(source=source("parquet"))
    for name, content in damaged(kit).items():
        file = kit.put(f"trips/{D1}-{name}.parquet", content)
        refused(kit, loaded, rf"trips.*{D1}-{name}\.parquet")
        file.unlink()


@pytest.mark.parametrize("fmt", ["csv", "jsonl", "parquet"])
def test_a_file_that_vanishes_after_it_was_listed_is_refused_by_name(fmt: str, kit: Kit) -> None:
    loaded = kit.dataset(source=source(fmt))
    content = {"csv": (HEADER + ROW).encode(), "jsonl": json.dumps(GOOD).encode(), "parquet": b"x"}[fmt]
    for part in ("a", "b"):
        kit.put(f"trips/{D1}-{part}.{fmt}", content)
    files = discover(loaded, kit.layout, [D1])
    (path_of(kit.layout.sources) / f"trips/{D1}-a.{fmt}").unlink()
    with pytest.raises(SourceError, match=rf"{D1}-a\.{fmt}"):
        land(kit.spark, loaded, kit.layout, files, NOW)
    assert unwritten(kit)


LINES = json.dumps(GOOD).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzipped(LINES * 2_000)[:-30]),
        ("a.jsonl.gz", gzipped(LINES * 2_000)[:-8]),
        ("a.jsonl.gz", gzipped(LINES) + gzipped(LINES)[:-1]),
        ("a.jsonl.gz", gzipped(LINES) + LINES),
        ("a.jsonl.gz", LINES),
        ("a.jsonl.gz", b""),
        ("a.jsonl", gzipped(LINES)),
        ("a.jsonl.bz2", bz2.compress(LINES)),
        ("a.jsonl.zst", zstd(LINES * 2_000)[:-30]),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 40),
    ],
    ids=range(10),
)
def test_a_broken_archive_is_refused_by_name_and_nothing_is_written(name: str, content: bytes, kit: Kit) -> None:
    loaded = kit.dataset(source=source("jsonl"))
    kit.put(f"trips/{D1}-{name}", content)
    refused(kit, loaded, rf"{D1}-{name}")


@pytest.mark.parametrize("fmt", ["csv", "jsonl"])
def test_a_compressed_file_has_the_rows_of_the_plain_one_and_an_identity_of_its_own(fmt: str, kit: Kit) -> None:
    loaded = kit.dataset(source=source(fmt), deduplicate="none")
    content = (HEADER + ROW * 3).encode() if fmt == "csv" else LINES * 3
    parts = [gzipped(content), gzipped(content), zstd(content), content]
    parts[1] += gzipped(content if fmt == "jsonl" else ROW.encode() * 3)
    for name, part in zip(("a.gz", "b.GZ", "c.zst", "d"), parts, strict=True):
        kit.put(f"trips/{D1}-{name}", part)
    landed = {d.path[-4:]: d for d in kit.land(loaded, D1)}
    assert [(d.rows, d.corrupt_rows) for d in landed.values()] == [(3, 0), (6, 0), (3, 0), (3, 0)]
    assert [d.fingerprint for d in landed.values()] == [hashlib.sha256(part).hexdigest() for part in parts]
    assert len(set(values(kit.raw(loaded), "day", "id", "kind", "amount", "fee"))) == 1


@pytest.mark.parametrize(
    "csv", [{"delimiter": "\\t"}, {"delimiter": "%"}, {"delimiter": "a1"}, {"quote": ";"}, {"quote": "\u00e9"}]
)
def test_every_dialect_that_is_not_refused_can_be_read(csv: dict[str, str], kit: Kit) -> None:
    loaded = kit.dataset(source=source("csv", **csv))
    text = (HEADER + ROW).replace(",", csv.get("delimiter", ",").replace("\\t", "\t"))
    kit.put(f"trips/{D1}.csv", text)
    assert [(d.rows, d.corrupt_rows) for d in kit.land(loaded, D1)] == [(1, 0)]
