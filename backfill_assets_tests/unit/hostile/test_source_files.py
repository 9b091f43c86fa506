"""Source files from a generator, checked before Spark reads them: found and understood, or refused by name."""

from __future__ import annotations

import bz2
import codecs
import csv
import datetime as dt
import gzip
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backfill_assets.core.errors import BackfillError, LayoutError, SourceError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.sources import CsvOptions, Encoding, FileColumn, Files, Format
from backfill_assets.evidence.inputs import golden_fingerprints
from backfill_assets.evidence.references import reference_fingerprints
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import delivered_sizes, discover, require_sources
from backfill_assets_tests.harness.dataset_folders import YAML, loaded, write_dataset
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.hostile.strategies import often, texts
from backfill_assets_tests.unit.hostile.watch import helpful, little_read, nothing_written, observed, showable

gzipped = partial(gzip.compress, mtime=0)
"""The same bytes each time: all processes of a test run must collect the same cases."""
pytestmark = pytest.mark.slow

DAY = dt.date(2024, 1, 1)
COLUMNS = {"trip": "long", "fare": "decimal(10,2)", "city": "string"}
BY_KEY = "staging: {deduplicate: latest_delivery}\n"
HEADER = b"trip,fare,city\n1,2.50,x\n"


@pytest.fixture
def trips(tmp_path: Path) -> LoadedDataset:
    return loaded(write_dataset(tmp_path / "datasets", yaml=YAML.replace("trips/{day}.csv", "trips/{day}*") + BY_KEY))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "sources" / "trips").mkdir(parents=True)
    return Layout(OnDisk(tmp_path / "warehouse"), OnDisk(tmp_path / "sources"))


def declared(kind: Format, **csv: object) -> Files:
    options = CsvOptions.model_validate(csv)
    # Not validated: a contract would refuse a header in a Parquet file, but the reader must handle any.
    return Reference.model_construct(
        format=kind,
        columns={name: FileColumn(type=kind) for name, kind in COLUMNS.items()},
        optional=(),
        encoding=Encoding.utf_8,
        csv=options,
        path="a",
    )


def tried(file: Path, kind: Format, **csv: object) -> None:
    with nothing_written(file.parent), little_read():
        try:
            require_columns(OnDisk(file), file.name, declared(kind, **csv))
        except SourceError as refusal:
            text = observed(refusal)
            showable(text)
            helpful(text, file.name, line=False)


def whole() -> bytes:
    sink = pa.BufferOutputStream()
    columns = {"trip": pa.array([1]), "fare": pa.array([None], pa.decimal128(10, 2)), "city": pa.array(["x"])}
    pq.write_table(pa.table(columns), sink)
    return cast("bytes", sink.getvalue().to_pybytes())


@st.composite
def spoiled(draw: st.DrawFn, content: bytes) -> bytes:
    """The content cut, with inserted or changed bytes, or in an undeclared encoding or compression."""
    at = draw(st.integers(0, len(content)))
    inserted = draw(st.binary(max_size=30) | texts().map(lambda text: text.encode("utf-8", "surrogatepass")))
    kinds = (
        content[:at], content[:at] + inserted + content[at:], inserted, content[:at] + inserted + content[at + len(inserted) :],
        gzipped(content)[:at], bz2.compress(content)[:at], content.decode("latin-1").encode("utf-16"), b"",
    )  # fmt: skip
    return draw(st.sampled_from(kinds))


@often
@given(
    spoiled(HEADER),
    st.sampled_from(["a.csv", "a.csv.gz", "a.csv.bz2", "a.csv.zst"]),
    st.sampled_from([",", "||", "\t", "\\t", "%"]),
)
def test_a_broken_csv_file_is_understood_or_refused_by_name(
    tmp_path: Path, content: bytes, name: str, delimiter: str
) -> None:
    (tmp_path / name).write_bytes(content)
    tried(tmp_path / name, Format.csv, delimiter=delimiter)


@often
@given(spoiled(whole()))
def test_a_broken_parquet_file_is_understood_or_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    tried(tmp_path / "a.parquet", Format.parquet)


names = st.dictionaries(
    texts().map(lambda text: text[:200]),
    st.sampled_from([pa.int64(), pa.string(), pa.list_(pa.int8()), pa.null()]),
    max_size=5,
)


@often
@given(names)
def test_a_parquet_file_of_another_schema_is_refused_by_name(tmp_path: Path, columns: dict[str, pa.DataType]) -> None:
    table = pa.schema(list(columns.items())).empty_table()
    try:
        pq.write_table(table, tmp_path / "a.parquet")
    except (pa.ArrowException, ValueError):
        return
    with pytest.raises(SourceError, match=r"^a\.parquet"):
        require_columns(OnDisk(tmp_path / "a.parquet"), "a.parquet", declared(Format.parquet))
    tried(tmp_path / "a.parquet", Format.parquet)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "a.csv", "it has no header, so it is incomplete"),
        (b"\n \n\n", "a.csv", "it has no header, so it is incomplete"),
        (b"\0" * 4096, "a.csv", "it has no header, so it is incomplete"),
        (codecs.BOM_UTF8, "a.csv", "a file without rows is a header alone"),
        (gzipped(b"\n \n"), "a.csv.gz", "it has no header, so it is incomplete"),
        (b"," * 600_000, "a.csv", "names 600,001 columns, at most 10,000"),
        (b"a" * (1 << 21), "a.csv", "its header does not end within 1 MiB"),
        (b"\n" * (1 << 22), "a.csv", "its header does not end within 1 MiB"),
        (gzipped(b"\n" * (1 << 26)), "a.csv.gz", "its header does not end within 1 MiB"),
        (gzipped(HEADER * 9)[:10] + b"\xff" * 60, "a.csv.gz", "cannot be read"),
        (HEADER, "a.csv.gz", "is no complete .gz file; deliver it again"),
        (b'trip,"' + b"x" * 200_000, "a.csv", "its header cannot be read: field larger than field limit"),
        (b"trip,\xe2\x80\xaefare\n", "a.csv", r"found trip, \u202efare"),
        (",".join(f"column_{n}" for n in range(9_000)).encode(), "a.csv", "and 8,950 more"),
    ],
    ids=range(14),
)
def test_a_senseless_header_is_refused(content: bytes, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as refused, little_read():
        require_columns(OnDisk(tmp_path / name), name, declared(Format.csv))
    assert message in observed(refused.value)


@pytest.mark.parametrize(
    ("content", "kind", "header"),
    [
        (HEADER, Format.csv, True),
        (HEADER, Format.csv, False),
        (b'{"trip": 1, "fare": 2, "city": "x"}\r', Format.jsonl, True),
    ],
    ids=["csv", "csv without a header", "jsonl"],
)
def test_a_file_that_ends_in_zeros_is_refused(content: bytes, kind: Format, header: bool, tmp_path: Path) -> None:  # noqa: FBT001
    file = tmp_path / "a"
    ends = (b"\0", b"\0" * 4_096, b"\0" * (1 << 18), b"\0\0\n", b"\0\0\r\n \n", b"\0\0 ", b" \0\t\0\r")
    for end in ends:
        file.write_bytes(content + end)
        with pytest.raises(SourceError, match=r"^a: it ends in zero bytes, so it is incomplete; deliver it again"):
            require_columns(OnDisk(file), "a", declared(kind, header=header))
    # Such a line is quarantined; only blank lines are ignored.
    for end in (b"2\0\0", b"2\0\0\n", b"\n \r\n"):
        file.write_bytes(content + end)
        require_columns(OnDisk(file), "a", declared(kind, header=header))


def packed(content: bytes, ending: str) -> bytes:
    return gzipped(content) if ending == ".gz" else cast("bytes", pa.compress(content, "zstd", asbytes=True))


TEXT_FILES = [(Format.csv, True), (Format.csv, False), (Format.jsonl, True)]


@pytest.mark.faults
@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize(("kind", "header"), TEXT_FILES, ids=["csv", "csv without a header", "jsonl"])
def test_an_archive_that_is_cut_anywhere_is_refused(
    kind: Format,
    header: bool,  # noqa: FBT001
    ending: str,
    tmp_path: Path,
    observed: Observed,
) -> None:
    observed.injected(
        f"a {kind} file that is compressed as {ending} is cut after each of its bytes, damaged, or followed by others"
    )
    content = b'{"trip": 1, "fare": 2, "city": "x"}\n' * 40 if kind is Format.jsonl else HEADER * 40
    for name in (f"a{ending}", f"a{ending.upper()}"):
        file, whole = tmp_path / name, packed(content, ending)
        for end in range(len(whole)):
            file.write_bytes(whole[:end])
            with pytest.raises(SourceError, match=rf"^{name}: (is no complete|cannot be read)") as refused:
                require_columns(OnDisk(file), name, declared(kind, header=header))
            helpful(str(refused.value), name, line=False)
        for good in (whole, whole * 2):
            file.write_bytes(good)
            require_columns(OnDisk(file), name, declared(kind, header=header))
        # Zstandard has a checksum only where its writer asks for one.
        flipped = [whole[:-9] + b"\xff" + whole[-8:]] if ending == ".gz" else []
        for bad in (*flipped, whole + b"\n1,2,3\n", whole + content):
            file.write_bytes(bad)
            with pytest.raises(SourceError, match=rf"^{name}: cannot be read") as refused:
                require_columns(OnDisk(file), name, declared(kind, header=header))
        observed.found(refused.value)
        file.write_bytes(packed(content + b"\0" * 9, ending))
        with pytest.raises(SourceError, match=rf"^{name}: it ends in zero bytes"):
            require_columns(OnDisk(file), name, declared(kind, header=header))


@pytest.mark.parametrize(("kind", "header"), TEXT_FILES, ids=["csv", "csv without a header", "jsonl"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", gzipped(HEADER)),
        ("a", gzipped(HEADER)),
        ("a.gz.csv", packed(HEADER, ".zst")),
        ("a.zst", gzipped(HEADER)),
        ("a.gz", packed(HEADER, ".zst")),
        ("a.gz", b""),
        ("a.csv", bz2.compress(HEADER)),
        ("a.csv.bz2", bz2.compress(HEADER)),
        ("a.csv.bz2", HEADER),
        ("a.csv.GZIP", gzipped(HEADER)),
        ("a.csv.deflate", HEADER),
        ("a.zip", b"PK\x03\x04" + HEADER),
        ("a.csv", b"PK\x03\x04" + HEADER),
    ],
)
def test_a_name_that_does_not_say_how_a_file_is_compressed_is_refused(
    name: str,
    content: bytes,
    kind: Format,
    header: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"^{name}: (is no complete|its name or its first bytes)") as refused:
        require_columns(OnDisk(tmp_path / name), name, declared(kind, header=header))
    helpful(observed(refused.value), name, line=False)


def test_an_archive_behind_a_link_is_what_its_target_says(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(gzipped(HEADER))
    (tmp_path / "a.csv.gz").symlink_to(tmp_path / "blob")
    with pytest.raises(SourceError, match=r"^a\.csv\.gz: its name or its first bytes .* of its target"):
        require_columns(OnDisk((tmp_path / "a.csv.gz").resolve()), "a.csv.gz", declared(Format.csv, header=False))


def with_headers(kind: Format, **columns: object) -> Files:
    said = {"format": kind.value, "path": "a", "columns": columns}
    return Reference.model_validate(said)


INVOICES = {
    "no": {"from": "Invoice No", "type": "string"},
    "amount": {"from": "Betrag, \u20ac", "type": "long"},
    "city": "string",
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"INVOICE NO","betrag, \xe2\x82\xac", City ,more\n', ""),
        (b'city, Invoice No ,"Betrag, \xe2\x82\xac"\n', ""),
        (
            b'city,no,"Betrag, \xe2\x82\xac"\n',
            "its header does not name Invoice No; expected Invoice No, Betrag, \u20ac, city; found city, no,",
        ),
        (b'city,Invoice  No,"Betrag, \xe2\x82\xac"\n', "its header does not name Invoice No"),
        (b'city,Invoice\xc2\xa0No,"Betrag, \xe2\x82\xac"\n', r"found city, invoice\xa0no"),
        (b'city,Invoice No,invoice no,"Betrag, \xe2\x82\xac"\n', "its header names Invoice No twice"),
        (b'city,Invoice No,no,No,"Betrag, \xe2\x82\xac"\n', ""),
        (b"city,Invoice No,amount\n", "its header does not name Betrag, \u20ac"),
        (b"city,Invoice No,Betrag, \xe2\x82\xac\n", "its header does not name Betrag, \u20ac"),
    ],
)
def test_a_header_of_a_csv_file_is_found_once_or_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    if not message:
        require_columns(OnDisk(tmp_path / "a"), "a", with_headers(Format.csv, **INVOICES))
        return
    with pytest.raises(SourceError) as refused:
        require_columns(OnDisk(tmp_path / "a"), "a", with_headers(Format.csv, **INVOICES))
    assert message in observed(refused.value)
    helpful(str(refused.value), "a", line=False)


def test_an_optional_column_under_its_own_name_is_not_silently_null(tmp_path: Path) -> None:
    renamed = with_headers(Format.csv, **INVOICES).model_copy(update={"optional": ("no", "amount")})
    (tmp_path / "a").write_bytes(b"city\n")
    require_columns(OnDisk(tmp_path / "a"), "a", renamed)
    (tmp_path / "a").write_bytes(b"city,NO\n")
    with pytest.raises(SourceError, match=r"its header does not name Invoice No; expected .* found city, no"):
        require_columns(OnDisk(tmp_path / "a"), "a", renamed)


def test_headers_of_json_and_parquet_are_found_once_or_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text('{"INVOICE NO": "1", "Betrag, \u20ac": 2, "no": 3, "city": "x"}\n', encoding="utf-8")
    require_columns(OnDisk(file), "a", with_headers(Format.jsonl, **INVOICES))
    file.write_text('{"no": "1", "Betrag, \u20ac": 2, "city": "x"}\n', encoding="utf-8")
    with pytest.raises(SourceError, match="none of its records has Invoice No; expected Invoice No, "):
        require_columns(OnDisk(file), "a", with_headers(Format.jsonl, **INVOICES))
    columns = {
        "INVOICE no": pa.array(["1"]),
        "Betrag, \u20ac": pa.array([2]),
        "city": pa.array(["x"]),
        "No": pa.array([1.5]),
    }
    pq.write_table(pa.table(columns), file)
    require_columns(OnDisk(file), "a", with_headers(Format.parquet, **INVOICES))
    pq.write_table(pa.table({**columns, "Betrag, \u20ac": pa.array([2.5])}), file)
    with pytest.raises(SourceError, match="a: column Betrag, \u20ac: expected long, found double"):
        require_columns(OnDisk(file), "a", with_headers(Format.parquet, **INVOICES))
    pq.write_table(pa.table({**columns, "Invoice No": pa.array(["2"])}), file)
    with pytest.raises(SourceError, match="its header names Invoice No twice"):
        require_columns(OnDisk(file), "a", with_headers(Format.parquet, **INVOICES))


def write_header(file: Path, kind: Format, header: str) -> None:
    """A file of one row with this header, or key."""
    if kind is Format.parquet:
        pq.write_table(pa.table({header: ["x"]}), file)
    elif kind is Format.jsonl:
        file.write_text(json.dumps({header: "x"}) + "\n", encoding="utf-8")
    else:
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows([[header, "city"], ["x", "y"]])


@often
@given(texts(), st.sampled_from(list(Format)))
def test_any_header_is_found_where_it_is_and_a_file_without_it_is_refused(
    tmp_path: Path, header: str, kind: Format
) -> None:
    try:
        one = with_headers(kind, no={"from": header, "type": "string"})
    except ValidationError:
        return  # refused in dataset.yaml
    file = tmp_path / "a"
    for there in (header, header.upper(), header.lower(), f"{header}_", "no", "\u202e", "\x1b[2J"):
        write_header(file, kind, there)
        if there.lower() == header.lower():
            require_columns(OnDisk(file), "a", one)
            continue
        with pytest.raises(SourceError) as refused:
            require_columns(OnDisk(file), "a", one)
        showable(observed(refused.value))
        helpful(str(refused.value), "a", line=False)


file_names = st.binary(min_size=1, max_size=30) | texts(surrogates=True).map(
    lambda text: text.encode("utf-8", "surrogateescape" if "\udcff" in text else "surrogatepass")
)


@often
@given(st.lists(file_names, max_size=4))
def test_no_name_of_a_file_does_harm(trips: LoadedDataset, layout: Layout, odd: list[bytes]) -> None:
    folder = path_of(layout.sources) / "trips"
    made = []
    for name in odd:
        path = os.path.join(os.fsencode(folder), b"2024-01-01" + name.replace(b"/", b"_").replace(b"\0", b"")[:200])  # noqa: PTH118  # of bytes
        with open(path, "wb") as out:  # noqa: PTH123  # of bytes
            out.write(HEADER)
        made.append(path)
    with nothing_written(path_of(layout.sources)), little_read():
        try:
            for found in discover(trips, layout, [DAY]):
                assert found.path.isprintable()
        except SourceError as refusal:
            text = observed(refusal)
            showable(text)
            assert text.startswith("trips/2024-01-01")
        delivered_sizes(trips, layout, [DAY])
    for path in made:
        os.unlink(path) if os.path.exists(path) else None  # noqa: PTH108, PTH110  # of bytes


def placed(folder: Path, path: str) -> LoadedDataset:
    """The dataset with its files there."""
    return loaded(write_dataset(folder / "placed", yaml=YAML.replace("trips/{day}.csv", path) + BY_KEY))


@pytest.mark.parametrize(
    ("path", "there", "refusal"),
    [
        ("trips/{yyyymmdd}*.csv", "202401011.csv", "another digit stands beside the day 2024-01-01"),
        ("trips/*{yyyymmdd}.csv", "120240101.csv", "another digit stands beside the day 2024-01-01"),
        ("trips/*{yyyymmdd}*.csv", "20240101-20240131.csv", "fits the delivery days 2024-01-01 and 2024-01-31"),
        ("trips/{day}*.csv", "2024-01-01\u0661.csv", "another digit stands beside the day 2024-01-01"),
    ],
)
def test_a_file_whose_day_is_unclear_is_refused_by_name(
    path: str, there: str, refusal: str, layout: Layout, tmp_path: Path
) -> None:
    file = path_of(layout.sources) / "trips" / there
    file.write_bytes(HEADER)
    with pytest.raises(SourceError, match=refusal) as refused:
        discover(placed(tmp_path, path), layout, [DAY])
    helpful(observed(refused.value), f"trips/{there}", line=False)


def test_month_and_day_in_the_wrong_order_are_refused_as_soon_as_one_file_shows_it(
    layout: Layout, tmp_path: Path
) -> None:
    wrong, right = (
        placed(tmp_path / order, f"trips/{order}.csv") for order in ("{yyyy}/{mm}/{dd}", "{yyyy}/{dd}/{mm}")
    )
    for day in range(1, 14):
        file = path_of(layout.sources) / "trips" / "2024" / f"{day:02}" / "01.csv"
        file.parent.mkdir(parents=True)
        file.write_bytes(HEADER)
        if day <= 12:
            require_sources(wrong, layout, tuple)
    with pytest.raises(
        SourceError, match=r"^trips/2024/13/01\.csv: \{mm\} finds 13 and \{dd\} finds 01, which is no day"
    ):
        require_sources(wrong, layout, tuple)
    # Files that are removed after landing excuse an empty folder, and nothing else.
    source = wrong.dataset.landing.model_copy(update={"removed_after_landing": True})
    with pytest.raises(SourceError, match="which is no day; put them in the other order"):
        require_sources(replace(wrong, dataset=wrong.dataset.model_copy(update={"source": source})), layout, tuple)
    require_sources(right, layout, tuple)


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "../../secret"])
def test_a_link_is_followed_below_the_sources_only(target: str, trips: LoadedDataset, layout: Layout) -> None:
    (path_of(layout.sources).parent / "secret").write_text("secret")
    link = path_of(layout.sources) / "trips" / "2024-01-01.csv"
    link.symlink_to(target)
    if target == "/dev/zero":
        assert discover(trips, layout, [DAY]) == ()
    else:
        with pytest.raises(LayoutError, match=r"'trips/2024-01-01\.csv' leads out of"):
            discover(trips, layout, [DAY])


@pytest.mark.parametrize("target", ["2024-01-01.csv", "../unmounted/2024-01-01.csv", "/unmounted/2024-01-01.csv"])
def test_a_link_to_nothing_is_refused_by_name(
    target: str, trips: LoadedDataset, layout: Layout, tmp_path: Path
) -> None:
    spelled_out = loaded(write_dataset(tmp_path / "spelled_out", yaml=YAML))
    (path_of(layout.sources) / "trips" / "2024-01-01-a.csv").write_bytes(HEADER)
    (path_of(layout.sources) / "trips" / "2024-01-01.csv").symlink_to(target)
    for one in (trips, spelled_out):
        with pytest.raises(SourceError, match=r"^trips/2024-01-01\.csv: it is a link whose target is missing"):
            discover(one, layout, [DAY])
        assert discover(one, layout, [DAY + dt.timedelta(1)]) == ()


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("mnt/trips/{day}*.csv", "mnt/trips"),
        ("mnt/{day}/*.csv", "mnt/2024-01-01"),
        ("mnt/{day}/all.csv", "mnt/2024-01-01"),
        ("mnt/{day}/**/a.csv", "mnt/2024-01-01"),
    ],
)
def test_a_folder_that_is_a_link_to_nothing_is_refused_by_name(
    path: str, link: str, layout: Layout, tmp_path: Path
) -> None:
    one = loaded(write_dataset(tmp_path / "datasets", yaml=YAML.replace("trips/{day}.csv", path) + BY_KEY))
    assert discover(one, layout, [DAY]) == ()
    (path_of(layout.sources) / "mnt").mkdir()
    (path_of(layout.sources) / link).symlink_to("/unmounted")
    with pytest.raises(SourceError, match=rf"^{link}: it is a link whose target is missing"):
        discover(one, layout, [DAY])


def test_a_path_that_the_file_system_does_not_let_us_read_is_refused_by_name(
    trips: LoadedDataset, layout: Layout, tmp_path: Path
) -> None:
    """Like a folder without permission, which would not stop root: here the target name of a link is too long."""
    spelled_out = loaded(write_dataset(tmp_path / "spelled_out", yaml=YAML))
    inside = loaded(write_dataset(tmp_path / "inside", yaml=YAML.replace("{day}.csv", "{day}.csv/a")))
    (path_of(layout.sources) / "trips" / "2024-01-01.csv").symlink_to("x" * 300)
    for one in (trips, spelled_out, inside):
        for look in (discover, delivered_sizes):
            with pytest.raises(SourceError, match=r"^trips/.*: it cannot be read, or is gone \(File name too long\)"):
                look(one, layout, [DAY])
    with pytest.raises(SourceError, match=r"^trips/.*/a: it cannot be read"):
        require_sources(inside, layout, tuple)


def test_a_warehouse_behind_a_circular_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").symlink_to(tmp_path / "raw")
    with pytest.raises(LayoutError, match="is no path below"):
        Layout(OnDisk(tmp_path), OnDisk(tmp_path)).raw_path("trips")


@pytest.fixture
def flickering(layout: Layout) -> Iterator[Path]:
    """A file that comes and goes, as on a network file system whose listing is older than its files."""
    file, over = path_of(layout.sources) / "trips" / "2024-01-01.csv", threading.Event()

    def flicker() -> None:
        while not over.is_set():
            file.write_bytes(HEADER)
            file.unlink()

    thread = threading.Thread(target=flicker)
    thread.start()
    yield file
    over.set()
    thread.join()


def test_a_file_that_vanishes_during_the_check_is_found_gone_or_refused(
    trips: LoadedDataset, layout: Layout, flickering: Path
) -> None:
    seen = set()
    for _ in range(500):
        for look in (lambda: discover(trips, layout, [DAY]), lambda: delivered_sizes(trips, layout, [DAY])):
            try:
                seen.add(bool(look()))
            except BackfillError as refusal:
                assert "trips/2024-01-01.csv: it cannot be read, or is gone" in str(refusal)  # noqa: PT017
                seen.add(True)
    assert seen


def test_a_file_that_is_gone_when_it_is_read_is_refused_by_name(trips: LoadedDataset, layout: Layout) -> None:
    for kind in (Format.csv, Format.parquet):
        with pytest.raises(SourceError, match=r"^trips/gone: .*deliver it again"):
            require_columns((layout.sources / "gone"), "trips/gone", declared(kind))


GOLDEN = """\
golden:
  finance: {file: {format: csv, path: f.csv, columns: {trip_date: date, trip: long}}, key: [trip_date, trip]}
  booked: {table: g, key: [trip_date, trip]}
"""


@pytest.fixture
def compared(tmp_path: Path) -> LoadedDataset:
    return loaded(write_dataset(tmp_path / "compared", yaml=YAML + GOLDEN))


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "../secret", "f.csv"])
def test_a_golden_file_is_followed_below_the_sources_only(target: str, compared: LoadedDataset, layout: Layout) -> None:
    (path_of(layout.sources).parent / "secret").write_text("secret")
    (path_of(layout.sources) / "f.csv").symlink_to(target)
    with pytest.raises(LayoutError, match=r"'f\.csv'"), little_read():
        golden_fingerprints(compared, layout, [DAY])


@pytest.mark.parametrize(
    "log",
    [b"", b"\0" * 99, b"[]", b'{"metaData": 1}', b'{"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}'],
    ids=range(5),
)
def test_a_golden_table_that_is_none_is_refused_by_name(log: bytes, compared: LoadedDataset, layout: Layout) -> None:
    (path_of(layout.sources) / "f.csv").write_bytes(HEADER)
    (path_of(layout.sources) / "g" / "_delta_log").mkdir(parents=True)
    (path_of(layout.sources) / "g" / "_delta_log" / f"{0:020}.json").write_bytes(log)
    with pytest.raises(
        SourceError, match=r"golden\.booked: g is not a complete Delta table: .*; deliver it completely"
    ) as no:
        golden_fingerprints(compared, layout, [DAY])
    showable(observed(no.value))


def test_a_reference_that_is_gone_is_refused_by_name(trips: LoadedDataset, layout: Layout) -> None:
    (path_of(layout.sources) / "cities.csv").mkdir()
    with pytest.raises(SourceError, match=r"the file of reference cities, cities\.csv, is not in"):
        reference_fingerprints(trips, layout, [DAY])
