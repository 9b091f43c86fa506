"""Sources, references and golden sources are found and read alike in a folder and in a bucket."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from backfill_assets.core.content import UNKNOWN_ORIGIN
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import LayoutError, SourceError, StorageError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.references import AsOf, Reference
from backfill_assets.dataset.sources import FileColumn, Files, Format, Golden
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.evidence.inputs import golden_fingerprints
from backfill_assets.evidence.known_deliveries import table_version
from backfill_assets.evidence.references import file_of, keep_versions, reference_fingerprints
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.bucket import InBucket, bucket_of
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location, State
from backfill_assets.storage.sources import (
    SourceFile,
    delivered_sizes,
    discover,
    gone_from_sources,
    require_no_folder,
    require_sources,
)
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.dataset_folders import YAML, loaded, write_dataset
from backfill_assets_tests.harness.objects import ObjectStore

D1, D2, D3 = (dt.date(2024, 1, n) for n in (1, 2, 3))
HEADER = "trip,fare,city\n"
COLUMNS = {"trip": "long", "fare": "decimal(10,2)", "city": "string"}


@pytest.fixture
def trips(tmp_path: Path) -> LoadedDataset:
    yaml = YAML.replace("trips/{day}.csv", "trips/**/{day}*.csv") + "staging: {deduplicate: latest_delivery}\n"
    return loaded(write_dataset(tmp_path / "datasets", yaml=yaml))


@pytest.fixture
def layout(home: Location, tmp_path: Path) -> Layout:
    return Layout(OnDisk(tmp_path / "warehouse"), home)


def put(layout: Layout, path: str, content: bytes | str) -> Location:
    """A file below the sources, as a supplier puts it there."""
    place, data = layout.sources / path, content.encode() if isinstance(content, str) else content
    place.parent.make_folder()
    if isinstance(place, InBucket):
        obstore.put(place.bucket.store, place.key, data)
    else:
        path_of(place).write_bytes(data)
    return place


def as_delivered(file: SourceFile) -> Delivery:
    return Delivery("trips", file.day, file.path, file.fingerprint, file.size, file.delivered_at, file.delivered_at)


def declared(kind: Format) -> Files:
    columns = {name: FileColumn(type=kind) for name, kind in COLUMNS.items()}
    return Reference.model_construct(format=kind, columns=columns, optional=(), path="a")


def test_files_are_found_with_their_content_whatever_lies_beside_them(trips: LoadedDataset, layout: Layout) -> None:
    with pytest.raises(SourceError, match=f"{layout.sources}: there is no such folder"):
        require_sources(trips, layout, tuple)
    files = {f"trips/{D1}.csv": D1, f"trips/eu/{D1} ü+%.csv": D1, f"trips/eu/{D2}.csv": D2}
    for number, path in enumerate(files):
        put(layout, path, HEADER + str(number))
    for path in (f"trips/.{D1}.csv", f"trips/{D1}.csv.part", f"trips/_{D1}.csv", f"other/{D1}.csv", f"trips/{D1}.txt"):
        put(layout, path, "no")
    found = discover(trips, layout, [D1, D2, D3])
    assert {one.path: one.day for one in found} == files
    contents = [hashlib.sha256(f"{HEADER}{n}".encode()).hexdigest() for n in range(3)]
    assert [one.fingerprint for one in sorted(found, key=lambda one: one.fingerprint)] == sorted(contents)
    assert {one.file.text() for one in found} == {f"{HEADER}{n}" for n in range(3)}
    require_sources(trips, layout, tuple)
    assert delivered_sizes(trips, layout, [D1, D3]) == {D1: 2 * (len(HEADER) + 1)}
    known = [as_delivered(one) for one in found]
    assert gone_from_sources(layout, known) == frozenset()
    (layout.sources / f"trips/eu/{D2}.csv").remove()
    assert gone_from_sources(layout, known) == {(D2, f"trips/eu/{D2}.csv")}
    assert [one.path for one in discover(trips, layout, [D2])] == []


def test_only_files_that_were_changed_are_read_again(
    trips: LoadedDataset, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for d in (D1, D2):
        put(layout, f"trips/{d}.csv", HEADER)
    known = [as_delivered(one) for one in discover(trips, layout, [D1, D2])]
    put(layout, f"trips/{D2}.csv", f"{HEADER}1,2.5,x\n")
    read: list[str] = []
    honest = type(layout.sources).content

    def content(file: Location) -> tuple[State, str]:
        read.append(file.name)
        return honest(file)

    monkeypatch.setattr(type(layout.sources), "content", content)
    changed = [one for one in discover(trips, layout, [D1, D2], known) if one.content not in {d.content for d in known}]
    assert ([one.day for one in changed], read) == ([D2], [f"{D2}.csv"])
    assert discover(trips, layout, [D1, D2], known)[1:] == tuple(changed)
    assert read == [f"{D2}.csv"]
    put(layout, f"trips/{D2}.csv", f"{HEADER}1,7.5,x\n")
    assert discover(trips, layout, [D1, D2], known)[1:] != tuple(changed)
    assert read == [f"{D2}.csv"] * 2
    assert len(discover(trips, layout, [D1, D2])) == 2
    assert len(read) == 4


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_text_is_checked_compressed_or_not(ending: str, layout: Layout) -> None:
    pack = {".gz": gzip.compress, ".zst": lambda text: pa.Codec("zstd").compress(text, asbytes=True)}.get(ending, bytes)

    def packed(text: str) -> bytes:
        return pack(text.encode())

    good = put(layout, f"good.csv{ending}", packed(f"{HEADER}1,2.50,x\n"))
    require_columns(good, "good", declared(Format.csv))
    for name, text, refusal in (
        ("other", "trip,fare\n1,2.50\n", "does not name city"),
        ("zeros", f"{HEADER}\0\0\0\0\n", "ends in zero bytes"),
    ):
        with pytest.raises(SourceError, match=f"^{name}: .*{refusal}"):
            require_columns(put(layout, f"{name}.csv{ending}", packed(text)), name, declared(Format.csv))
    if ending:
        with pytest.raises(SourceError, match=f"^cut: (is no complete {ending} file|cannot be read)"):
            require_columns(
                put(layout, f"cut.csv{ending}", packed(f"{HEADER}1,2.50,x\n")[:-6]), "cut", declared(Format.csv)
            )
    with pytest.raises(SourceError, match=r"^gone: cannot be read"):
        require_columns(layout.sources / f"gone.csv{ending}", "gone", declared(Format.csv))


def test_parquet_is_checked_by_its_own_schema(layout: Layout) -> None:
    for name, columns, refusal in (
        ("good", {"trip": pa.array([1]), "fare": pa.array([None], pa.decimal128(10, 2)), "city": pa.array(["x"])}, ""),
        (
            "bad",
            {"trip": pa.array(["1"]), "fare": pa.array([None], pa.decimal128(10, 2)), "city": pa.array(["x"])},
            "trip",
        ),
    ):
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out)
        file = put(layout, f"{name}.parquet", out.getvalue())
        if refusal:
            with pytest.raises(SourceError, match=f"column {refusal}: expected long, found string"):
                require_columns(file, name, declared(Format.parquet))
        else:
            require_columns(file, name, declared(Format.parquet))


def test_references_golden_files_and_tables_have_the_fingerprints_of_their_content(
    trips: LoadedDataset, layout: Layout
) -> None:
    cities = Reference(format=Format.csv, path="cities.csv", columns={"city": "string"})
    golden: Mapping[str, Golden] = {
        "file": Golden(file=Reference(format=Format.csv, path="booked.csv", columns={"trip": "long"}), key=("trip",)),
        "table": Golden(table="booked", key=("trip",)),
    }
    own = trips.dataset.model_copy(update={"references": {"cities": cities}, "golden": golden})
    with_more = replace(trips, dataset=own)
    for call in (
        lambda: reference_fingerprints(with_more, layout, [D1]),
        lambda: golden_fingerprints(with_more, layout, [D1]),
    ):
        with pytest.raises(SourceError, match=f"is not in {layout.sources}"):
            call()
    put(layout, "cities.csv", "city\nParis\n")
    put(layout, "booked.csv", "trip\n1\n")
    table = layout.source("booked")
    table.make_folder()
    rows = pa.table({"trip_date": pa.array([D1], pa.date32()), "trip": [1]})
    write_deltalake(str(table), rows, partition_by=["trip_date"], storage_options=table.storage_options)
    before = golden_fingerprints(with_more, layout, [D1])[D1]
    prints = {"cities": hashlib.sha256(b"city\nParis\n").hexdigest()}
    assert reference_fingerprints(with_more, layout, [D1, D2]) == {D1: prints, D2: prints}
    assert before["golden:file"] == hashlib.sha256(b"trip\n1\n").hexdigest()
    write_deltalake(str(table), rows, mode="append", storage_options=table.storage_options)
    after = golden_fingerprints(with_more, layout, [D1])[D1]
    assert (after["golden:file"], after["golden:table"] != before["golden:table"]) == (before["golden:file"], True)


def test_a_source_table_is_read_by_its_log(trips: LoadedDataset, layout: Layout) -> None:
    source = TableSource.model_validate({"table": "bronze/trips", "day": "trip_date", "columns": {"trip": "long"}})
    of_table = replace(trips, dataset=trips.dataset.model_copy(update={"source": source}))
    with pytest.raises(SourceError, match=f"the Delta table bronze/trips is not in {layout.sources}"):
        table_version(of_table, layout)
    place = layout.source("bronze/trips")
    place.make_folder()
    rows = pa.table({"trip_date": pa.array([D1, D2], pa.date32()), "trip": [1, 2]})
    write_deltalake(str(place), rows, partition_by=["trip_date"], storage_options=place.storage_options)
    assert (table_version(of_table, layout).number, sorted(table_version(of_table, layout).days)) == (0, [D1, D2])


def test_a_file_that_is_a_folder_too_is_refused(layout: Layout) -> None:
    require_no_folder(put(layout, "cities.csv", "city\n"), "cities.csv")
    put(layout, "costs.csv/part-0.csv", "city\n")
    with pytest.raises(SourceError, match=r"^costs\.csv: there are objects below it"):
        require_no_folder(layout.source("costs.csv"), "costs.csv")


def test_sources_may_be_empty_if_files_are_removed_after_landing(
    trips: LoadedDataset, layout: Layout, home: Location
) -> None:
    source = trips.dataset.landing.model_copy(update={"removed_after_landing": True})
    removed = replace(trips, dataset=trips.dataset.model_copy(update={"source": source}))
    home.make_folder()
    require_sources(removed, layout, tuple)
    assert discover(removed, layout, [D1, D2]) == ()


def test_a_path_does_not_lead_out_of_the_sources(layout: Layout) -> None:
    for path in ("../x.csv", "a/../../x.csv", "", "/etc/passwd"):
        with pytest.raises(LayoutError):
            layout.source(path)


def test_a_bucket_that_is_gone_is_named(trips: LoadedDataset, store: ObjectStore) -> None:
    layout = Layout(bucket_of(f"{store.url}/w"), bucket_of("s3://nobodys/sources"))
    landed = [Delivery("trips", D1, f"trips/{D1}.csv", "f", 1, SystemClock().now(), SystemClock().now())]
    for call in (
        lambda: gone_from_sources(layout, landed),
        lambda: discover(trips, layout, [D1]),
        lambda: require_sources(trips, layout, tuple),
        lambda: delivered_sizes(trips, layout, [D1]),
    ):
        with pytest.raises(StorageError, match=r"s3://nobodys/sources.*there is no such bucket"):
            call()


def test_nothing_counts_as_gone_or_empty_while_the_store_refuses(
    trips: LoadedDataset, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = [Delivery("trips", D1, f"trips/{D1}.csv", "f", 1, SystemClock().now(), SystemClock().now())]
    cities = Reference.model_validate({"format": "csv", "path": "cities.csv", "columns": {"city": "string"}})
    more = {"references": {"cities": cities}, "golden": {"table": Golden(table="booked", key=("trip",))}}
    of_all = replace(trips, dataset=trips.dataset.model_copy(update=more))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    layout = Layout(bucket_of(f"{store.url}/w"), bucket_of(f"{store.url}/sources"))
    for call in (
        lambda: discover(trips, layout, [D1]),
        lambda: discover(trips, layout, [D1, D2]),
        lambda: require_sources(trips, layout, tuple),
        lambda: delivered_sizes(trips, layout, [D1]),
        lambda: gone_from_sources(layout, landed),
        lambda: reference_fingerprints(of_all, layout, [D1]),
        lambda: golden_fingerprints(of_all, layout, [D1]),
    ):
        with pytest.raises(StorageError, match=r"s3://lake/sources.*refuses access"):
            call()


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_version_of_a_reference_is_kept_verified_and_never_replaced(
    trips: LoadedDataset, home: Location, suffix: str
) -> None:
    layout = Layout(home / "warehouse", home / "sources")
    cities = Reference(format=Format.csv, path=f"cities{suffix}", columns={"city": "string"}, as_of=AsOf.published)
    kept = replace(trips, dataset=trips.dataset.model_copy(update={"references": {"cities": cities}}))

    def prints(published: Mapping[dt.date, str] = {}) -> dict[dt.date, str]:
        found = reference_fingerprints(kept, layout, [D1, D2], {day: {"cities": one} for day, one in published.items()})
        return {day: one["cities"] for day, one in found.items()}

    def keep(version: str) -> None:
        keep_versions(kept, layout, {D1: {"cities": version}})

    put(layout, cities.path, "city\nParis\n")
    first = prints()[D1]
    assert prints() == {D1: first, D2: first}
    assert first == hashlib.sha256(b"city\nParis\n").hexdigest()
    source = layout.source(cities.path)
    assert file_of(kept, layout, "cities", first, (D1,)) == source
    for _ in range(2):
        keep(first)
    put(layout, cities.path, "city\nRome\n")
    second = prints()[D2]
    assert prints({D1: first}) == {D1: first, D2: second}
    copy = file_of(kept, layout, "cities", first, (D1,))
    assert (copy.text(), copy.suffix) == ("city\nParis\n", source.suffix)
    # A reference that the day was built without has no version yet; what is not known is refused.
    assert reference_fingerprints(kept, layout, [D1], {D1: {}}) == {D1: {"cities": second}}
    with pytest.raises(SourceError, match=f"trips {D1}: it is not known with which version of reference cities"):
        keep(prints({D1: UNKNOWN_ORIGIN})[D1])
    with pytest.raises(SourceError, match=f"trips {D1} sees is neither there nor in the sources"):
        file_of(kept, layout, "cities", "0" * 64, (D1,))
    # Later files may have another ending.
    other = replace(
        kept,
        dataset=kept.dataset.model_copy(update={"references": {"cities": cities.model_copy(update={"path": "c.txt"})}}),
    )
    assert file_of(other, layout, "cities", first, (D1,)) == copy
    copy.remove()
    with pytest.raises(
        SourceError, match=r"is neither there nor in the sources\. If the file was replaced just now, launch again"
    ):
        keep(first)
    copy.write("city\nOslo\n")
    for call in (lambda: file_of(kept, layout, "cities", first, (D1,)), lambda: keep(first)):
        with pytest.raises(SourceError, match="its bytes are no longer those of the version of reference cities"):
            call()
