"""Deliveries in force on the real pipeline: corrections win, withdrawn files do not count, a lost warehouse is rebuilt."""

from __future__ import annotations

import datetime as dt
import shutil
from enum import Enum, auto
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backfill_assets.application import Application
from backfill_assets.core.delivery import Deed, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.dataset.deliveries import heads
from backfill_assets.delta.opening import is_table
from backfill_assets.delta.reading import digests_by_day
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.pipeline.deliveries import Chosen
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.harness.supplier import CONTENTS, D7, D8, D9, Act, Land, Model, Put, Reland, Take, an_act
from backfill_assets_tests.harness.without_dagster import built, judged, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, TRIPS, Kit, commits, values

PATH = f"trips/{D1}.csv"


def verdict(evidence: DayEvidence, check: str) -> Verdict:
    return next(v for v in evidence.verdicts if v.check == check)


def ids(kit: Kit, application: Application, *days: dt.date, name: str = "trips") -> list[object]:
    """The staged rows of these days, once all files that are there have landed."""
    application.pipeline.land(kit.spark, name, days)
    application.pipeline.stage(kit.spark, name, days)
    (folder,) = path_of(kit.layout.staging_path(name)).iterdir()
    return [row[0] for row in values(kit.table(folder).where(f"day = '{days[0]}'"), "id")]


def test_a_supplier_who_sends_corrects_and_takes_back_gets_what_they_said_last(kit: Kit) -> None:
    """This holds also if the corrected file has an older time of change; rows that it no longer has are gone everywhere."""
    kit.dataset(key=["day", "kind"], measures={"fee": {}}, checks={})
    application = Application(kit.settings)
    raw, journal = path_of(kit.layout.raw_path("trips")), application.ledger.delivery_journal
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,10,1.00", f"{D1},unreadable,c,10,1.00", hour=5)
    application.pipeline.land(kit.spark, "trips", (D1,))
    right = (f"{D1},1,a,10,1.00",)
    kit.deliver(D1, *right, hour=1)
    publish(application, kit.spark, "trips", (D1,))
    assert ids(kit, application, D1) == [1]
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,10,1.00", hour=9)
    assert ids(kit, application, D1) == [1, 2]
    before = commits(raw)
    kit.deliver(D1, *right, hour=1)
    assert application.pipeline.days_to_land("trips", (D1,)) == (D1,)
    assert ids(kit, application, D1) == [1]
    assert [entry.deed.value for entry in journal("trips", [D1])] == ["came again"]
    assert commits(raw) == before, "what raw has is not written twice"
    assert application.late_deliveries.moved("trips") == ()

    inputs, services = application.basis.inputs("trips", (D1,)), application.delivery_commands
    assert services.withdraw("trips", Chosen(PATH), "of another shop").published == (D1,)
    kit.deliver(D1, f"{D1},3,d,10,1.00", part="-2", hour=2)
    day = judged(application, built(application, kit.spark, "trips", (D1,)), "trips")[D1]
    assert ids(kit, application, D1) == [3]
    keys = verdict(day, "change_keys")
    assert (keys.passed, keys.found) == (
        True,
        "1 added and 1 removed of 1 row, 2 of them with keys of deliveries that came or went",
    )
    assert (verdict(day, "corrupt_rows").passed, verdict(day, "source_present").found) == (True, "1 deliveries")
    services.withdraw("trips", Chosen(f"trips/{D1}-2.csv"), "of another shop as well")
    services.restore("trips", Chosen(PATH), "it was right")
    assert application.basis.inputs("trips", (D1,)) == inputs
    # Raw and staging are lost, and are rebuilt from the sources and the ledger as they were.
    shutil.rmtree(raw)
    shutil.rmtree(path_of(kit.layout.staging_path("trips")))
    assert ids(kit, application, D1) == [1]
    lost = {one.path for one in application.ledger.deliveries("trips", [D1]) if not one.landings}
    assert (lost, application.pipeline.days_to_land("trips", (D1,))) == ({PATH}, ())


def test_a_file_of_a_later_day_wins_whatever_its_time_and_the_latest_file_of_a_day_may_replace_the_rest(
    kit: Kit,
) -> None:
    late = {**TRIPS["source"], "late_days": 1}  # type: ignore[dict-item]
    kit.dataset(name="later", source=late)
    kit.dataset(name="whole", source={**late, "late_days": 0}, deduplicate="latest_file")
    application = Application(kit.settings)
    kit.deliver(D2, f"{D2},1,b,10,1.00", f"{D1},1,b,10,1.00", hour=1)
    # The later day lands before the file of the other one arrives.
    application.pipeline.land(kit.spark, "later", (D2,))
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,a,10,1.00", part="-1", hour=5)
    assert ids(kit, application, D1, name="later") == [1, 2]
    (folder,) = path_of(kit.layout.staging_path("later")).iterdir()
    assert values(kit.table(folder), "id", "kind") == [(1, "b"), (2, "a")]
    kit.deliver(D1, f"{D1},2,c,10,1.00", part="-2", hour=6)
    assert ids(kit, application, D1, name="whole") == [2]
    services = application.delivery_commands
    services.withdraw("whole", Chosen(f"trips/{D1}-2.csv"), "wrong file")
    assert ids(kit, application, D1, name="whole") == [1, 2]

    raw = path_of(kit.layout.raw_path("whole"))
    before, staged = digests_by_day(OnDisk(raw), DELIVERY_DAY, [D1]), application.basis.staged_inputs("whole", (D1,))
    done = services.reland(kit.spark, "whole", Chosen(days=(D1,)), "the disk was bad")
    assert [(one.path, one.rows) for one in done.deliveries] == [(f"trips/{D1}-1.csv", 2)]
    assert digests_by_day(OnDisk(raw), DELIVERY_DAY, [D1]) != before
    assert application.basis.staged_inputs("whole", (D1,)) != staged
    assert ids(kit, application, D1, name="whole") == [1, 2]
    (path_of(kit.layout.sources) / f"trips/{D1}-1.csv").unlink()
    with pytest.raises(SourceError, match=rf"trips/{D1}-1.csv: no longer among the sources; put it back"):
        services.reland(kit.spark, "whole", Chosen(days=(D1,)), "again")
    assert services.reland(kit.spark, "whole", Chosen(days=(D1,)), "again", force=True).deliveries == ()
    assert ids(kit, application, D1, name="whole") == [1, 2]


def test_a_file_outside_a_narrowed_path_is_refused_by_name_until_it_is_withdrawn(kit: Kit) -> None:
    def described(path: str) -> Application:
        kit.dataset(source={**TRIPS["source"], "path": path})  # type: ignore[dict-item]
        return Application(kit.settings)

    application = described("trips/{day}*.csv")
    returns = f"trips/{D1}-returns.csv"
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.deliver(D1, f"{D1},2,b,10,1.00", part="-returns")
    kit.deliver(D2, f"{D2},1,a,10,1.00", part="-moved")
    application.pipeline.land(kit.spark, "trips", (D1, D2))
    assert application.pipeline.stage(kit.spark, "trips", (D1, D2)) == {D1: 2, D2: 1}
    application = described("trips/{day}.csv")
    assert application.pipeline.land(kit.spark, "trips", (D1, D2)).new == ()
    with pytest.raises(SourceError, match=rf"trips {D1}: {returns} landed under another source.path"):
        application.pipeline.stage(kit.spark, "trips", (D1, D2))
    # The other day has no other files: its files have moved.
    assert application.pipeline.stage(kit.spark, "trips", (D2,)) == {D2: 1}
    application.delivery_commands.withdraw("trips", Chosen(returns), "no trips")
    assert application.pipeline.stage(kit.spark, "trips", (D1, D2)) == {D1: 1}


class Other(Enum):
    """Other events than deliveries: another reading or code, an empty inbox, backups of raw and staging, a publication."""

    read = auto()
    deploy = auto()
    empty = auto()
    back_up = auto()
    restore = auto()
    publish = auto()


class Story:
    """A dataset, its sources and its warehouse through a story, beside a model of what readers must see in the end."""

    def __init__(self, house: Kit) -> None:
        self.house, self.model = house, Model()
        self.null, self.suffix = "", ""
        self.published: dict[int, str | None] = {}
        self.backup: tuple[Path, frozenset[tuple[Place, str]]] | None = None
        self.in_raw: frozenset[tuple[Place, str]] = frozenset()
        self.application = self.described()

    def described(self) -> Application:
        """The dataset as it is declared now, loaded as by a restarted code location."""
        if hasattr(self, "application"):
            self.application.ledger.close()  # type: ignore[attr-defined]
        source = {
            **TRIPS["source"],  # type: ignore[dict-item]
            "late_days": 2,
            "on_missing": "pass",
            "removed_after_landing": True,
            "csv": {"null_value": self.null},
        }
        fact = f"SELECT day, id, concat(kind, '{self.suffix}') AS kind, amount, fee FROM staging"
        self.house.dataset(fact=fact, start="2024-01-01", source=source, measures={}, checks={})
        return Application(self.house.settings)

    def act(self, act: Act | Other) -> None:
        """One thing that happens."""
        services = self.application.delivery_commands
        match act:
            case Put(place, content, hour):
                rows = [f"{D7},{key},{value},1,1" for key, value in CONTENTS[content].items()]
                self.house.deliver(place[0], *rows, part=f"-{place[1][-1]}", hour=hour)
                self.model.files[place] = (content, hour)
            case Land(days):
                self.application.pipeline.land(self.house.spark, "trips", tuple(sorted(days)))
                self.landed(*days)
            case Take(place, deed):
                change = services.withdraw if deed is Deed.withdrawn else services.restore
                if self.model.take(place, deed):
                    change("trips", Chosen(_path(place)), "a test")
            case Reland(place):
                one = heads(self.application.ledger.deliveries("trips", [D7, D8, D9])).get((place[0], _path(place)))
                if one is not None and not one.withdrawn and place in self.model.files:
                    services.reland(self.house.spark, "trips", Chosen(prefix=_path(place)), "a test")
                    self.landed(place[0])
            case _:
                self.other(act)

    def other(self, act: Other) -> None:
        match act:
            case Other.read:
                self.null = "" if self.null else "b"
                self.application = self.described()
            case Other.deploy:
                self.suffix += "x"
                self.application = self.described()
            case Other.empty:
                for place in self.model.files:
                    (path_of(self.house.layout.sources) / _path(place)).unlink()
                self.model.files.clear()
            case Other.back_up:
                self.back_up()
            case Other.restore:
                self.restore()
            case Other.publish:
                self.publish()

    def landed(self, *days: dt.date) -> None:
        """The files of these days that are there have landed."""
        known = self.application.dataset("trips").fact_delivery_days(tuple(sorted(days)))
        self.model.land(known)
        self.in_raw |= {(place, content) for place, (content, _) in self.model.files.items() if place[0] in known}

    def back_up(self) -> None:
        folder = Path(mkdtemp(dir=self.house.root))
        for path in (path_of(self.house.layout.raw_path("trips")), path_of(self.house.layout.staging_path("trips"))):
            if path.exists():
                shutil.copytree(path, folder / path.parent.name)
        self.backup = folder, self.in_raw

    def restore(self) -> None:
        """Raw and staging are restored from the backup; the ledger and the published table stay."""
        if self.backup is None:
            return
        folder, self.in_raw = self.backup
        for path in (path_of(self.house.layout.raw_path("trips")), path_of(self.house.layout.staging_path("trips"))):
            shutil.rmtree(path, ignore_errors=True)
            if (folder / path.parent.name).exists():
                shutil.copytree(folder / path.parent.name, path)

    def publish(self) -> None:
        """Publish the day, which is refused only if rows are lost that nothing can restore."""
        self.landed(D7)
        rows = {key: None if value == self.null else value + self.suffix for key, value in self.model.rows().items()}
        lost = [one for one in self.model.counts() if CONTENTS[one[1]] and one not in self.in_raw]
        if not rows:
            return
        if lost:
            with pytest.raises(SourceError, match="raw"):
                built(self.application, self.house.spark, "trips", (D7,))
            return
        unit = built(self.application, self.house.spark, "trips", (D7,), {"row_count": "any"})
        self.application.publisher.release(unit.id)
        self.published = rows

    def seen(self) -> dict[object, object]:
        """What readers see."""
        path = path_of(self.house.layout.published_path("trips"))
        return (
            dict(values(self.house.table(path).where(f"day = '{D7}'"), "id", "kind")) if is_table(OnDisk(path)) else {}
        )


def _path(place: Place) -> str:
    return f"trips/{place[0]}-{place[1][-1]}.csv"


_FIRST = (D7, "7/a")


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([Put(_FIRST, "A", 0), Other.back_up, Other.publish, Other.empty, Other.restore])
@example(
    [Put(_FIRST, "A", 0), Other.publish, Other.back_up, Other.read, Other.empty, Put(_FIRST, "B", 0), Other.restore]
)
@given(st.lists(st.one_of(an_act, st.sampled_from(Other)), max_size=16))
def test_published_rows_follow_the_sources_whatever_happens(kit: Kit, story: list[Act | Other]) -> None:
    """Files arrive, are corrected, restored, withdrawn and read again; code, reading and backups change in between."""
    observed = Story(Kit(kit.spark, Path(mkdtemp(dir=kit.root))))
    for act in [*story, Other.publish]:
        observed.act(act)
        if act is Other.publish:
            assert observed.seen() == observed.published
    observed.application.ledger.close()  # type: ignore[attr-defined]
