"""Certificates of real models: a model that gives the same rows however it is computed passes; any other is named."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from backfill_assets.core.certificate import AS_BUILT, Certificate
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.checkout import datasets_at
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.proof.history_diff import HistoryDiff, as_markdown
from backfill_assets.proof.recompute import SparkRecomputations
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.harness import without_dagster
from backfill_assets_tests.harness.git import git
from backfill_assets_tests.harness.world import LEASE
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, FACT, TRIPS, Kit
from backfill_assets_tests.spark.workplace import OnTheTestServer


class OfKit(OnTheTestServer):
    """The application over the datasets of a kit as they are now."""

    def __init__(self, kit: Kit, server: Settings) -> None:
        super().__init__(kit.settings, server)
        self._kit = kit

    def land(self, *days: dt.date) -> None:
        self.pipeline.land(self._kit.spark, "trips", days)

    def build(self, *days: dt.date, names: Sequence[str] = ("trips",)) -> Unit:
        """Land, build and judge these days of some datasets in a unit of their own."""
        unit = without_dagster.opened(self, dict.fromkeys(names, days))
        without_dagster.build(self, self._kit.spark, unit)
        return unit

    def prove(self, target: str = "trips", *days: dt.date) -> Certificate:
        (certificate,) = self.prover.prove(target, days)
        return certificate

    def diff(self, ref: str, *names: str) -> HistoryDiff:
        with datasets_at(self.settings.datasets, ref) as checkout:
            return self.history_diffs.of(checkout, names)

    def layouts(self, name: str = "trips") -> dict[dt.date, str]:
        return {day: layout_digest(files) for day, files in self.tables[name].active().items()}


def delivered(kit: Kit, *days: dt.date, rows: int = 60) -> None:
    """Rows with many equal kinds and amounts, whose sums depend on the order of addition."""
    for day in days:
        kit.deliver(day, *(f"{day},{i},k{i % 6},{(i % 7 + 1) * 0.1 + i % 3 * 1e15},{i % 9}.25" for i in range(rows)))


def test_a_deterministic_model_passes_and_leaves_no_trace(kit: Kit, spark_settings: Settings) -> None:
    kit.dataset(checks={})
    application = OfKit(kit, spark_settings)
    delivered(kit, D1, D2, D3)
    unit = application.build(D1, D2, D3)
    application.publisher.release(unit.id)
    before, folders = application.layouts(), _folders(kit)
    certificate = application.prove()
    assert certificate.passed
    assert certificate.days == (D1, D2, D3)
    assert [way.name for way in certificate.recomputations] == ["as configured", "again", "another engine", AS_BUILT]
    assert {name: found[D1] for name, found in certificate.prints.items()} == dict.fromkeys(
        certificate.prints, certificate.prints["again"][D1]
    )
    prints = certificate.prints["again"][D1]
    assert (prints.rows, prints.keys, sorted(prints.columns)) == (60, 60, ["amount", "day", "fee", "id", "kind"])
    assert prints.sums["fee"] == f"{sum(i % 9 for i in range(60)) + 15}.00"
    assert application.layouts() == before
    assert _folders(kit) == folders
    assert application.ledger.certificates("trips") == (certificate,)


# Each model sees the rows of a day of its own as the table `{rows}`.
PLANTED = {
    "row_number without a total order": (
        "SELECT day, id, kind, CAST(ROW_NUMBER() OVER (PARTITION BY kind ORDER BY 1) AS double) AS amount, fee FROM {rows}",
        ("amount",),
    ),
    "a sum of floats": (
        """SELECT day, CAST(right(kind, 1) AS int) AS id, kind, SUM(amount) AS amount,
        CAST(COUNT(*) AS decimal(12,2)) AS fee FROM {rows} GROUP BY day, kind""",
        ("amount",),
    ),
    "the largest of several that are equal": (
        """SELECT day, CAST(right(kind, 1) AS int) AS id, kind, MAX_BY(amount, 1) AS amount,
        CAST(COUNT(*) AS decimal(12,2)) AS fee FROM {rows} GROUP BY day, kind""",
        ("amount",),
    ),
    "a list in an order that decides nothing": (
        """SELECT day, CAST(right(kind, 1) AS int) AS id, LISTAGG(CAST(id AS string), ' ') WITHIN GROUP (ORDER BY 1) AS kind,
        CAST(SUM(fee) AS double) AS amount, CAST(COUNT(*) AS decimal(12,2)) AS fee FROM {rows} GROUP BY day, kind""",
        ("kind",),
    ),
}
FIRST_OF_EACH = """SELECT day, id, kind, amount, fee, _lineage FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY kind ORDER BY 1) AS n FROM {rows}
) WHERE n <= 3"""
HONEST, UNSTAGED, *_PLANTED_ON = (D1 + dt.timedelta(i) for i in range(2 + len(PLANTED)))
"""The day whose models are deterministic, the one whose staging model is not, and one for each fact that is not."""
PLANTED_ON = dict(zip(PLANTED, _PLANTED_ON, strict=True))


def only(model: str, day: dt.date, table: str) -> str:
    """A model over the rows of one day of a table."""
    rows = f"(SELECT * FROM {table} WHERE day = DATE'{day}')"
    return f"({model.format(rows=rows)})"


@pytest.fixture(scope="module")
def planted(module_kit: Kit, spark_server: SparkServer) -> Certificate:
    """The findings on the days whose models depend on the order of rows."""
    staging = [f"(SELECT day, id, kind, amount, fee, _lineage FROM raw WHERE day <> DATE'{UNSTAGED}')"]
    staging.append(only(FIRST_OF_EACH, UNSTAGED, "raw"))
    facts = [only(FACT.replace("staging", "{rows}"), day, "staging") for day in (HONEST, UNSTAGED)]
    facts += [only(fact, PLANTED_ON[name], "staging") for name, (fact, _) in PLANTED.items()]
    models = [" UNION ALL ".join(texts) for texts in (staging, facts)]
    module_kit.dataset(*models, checks={})
    application = OfKit(module_kit, engine_settings(spark_server.folder.root.parent))
    days = (HONEST, UNSTAGED, *PLANTED_ON.values())
    delivered(module_kit, *days)
    application.land(*days)
    return application.prove("trips", *days)


def test_days_of_deterministic_models_agree_beside_others_that_do_not(planted: Certificate) -> None:
    assert not planted.passed
    assert {found.day for found in planted.disagreements} == {UNSTAGED, *PLANTED_ON.values()}
    assert planted.touched == ()


@pytest.mark.parametrize("planted_fact", PLANTED)
def test_a_fact_that_depends_on_the_order_of_rows_is_caught_and_its_column_named(
    planted: Certificate, planted_fact: str
) -> None:
    (_, columns), day = PLANTED[planted_fact], PLANTED_ON[planted_fact]
    disagreements = [found for found in planted.disagreements if found.day == day]
    assert {found.columns for found in disagreements} == {columns}
    rows = [row for found in disagreements for row in found.rows]
    assert rows
    assert all(row[f"{columns[0]}: old"] != row[f"{columns[0]}: new"] and row["day"] == str(day) for row in rows)
    assert max(len(found.rows) for found in disagreements) <= 20


def test_a_staging_model_that_depends_on_order_is_caught_even_if_its_keys_differ(planted: Certificate) -> None:
    (disagreement, *_) = (found for found in planted.disagreements if found.day == UNSTAGED)
    assert "id" in disagreement.columns
    assert "kind" not in disagreement.columns
    sides = {side.partition(": ")[2] for row in disagreement.rows for side in row}
    assert {"old", "new"} <= sides


def test_a_unit_is_compared_with_what_it_has_built_and_a_shadow_of_other_rows_is_noticed(
    kit: Kit, spark_settings: Settings
) -> None:
    kit.dataset(checks={})
    application = OfKit(kit, spark_settings)
    delivered(kit, D1, D2)
    unit = application.build(D1, D2)
    assert application.prove(unit.id, D1).passed
    (stored,) = application.ledger.evidence(unit.id, "trips", [D2]).values()
    shadow = replace(stored.measured.shadow, fingerprint="1:2:3")
    attempt = application.ledger.start_attempt(unit.id, "trips", (D2,), "again", LEASE)
    forged = replace(stored, measured=replace(stored.measured, shadow=shadow), attempt=attempt.number)
    application.ledger.add_evidence(attempt.number, [forged])
    certificate = application.prove(unit.id)
    assert certificate.unit == unit.id
    assert certificate.prints[AS_BUILT].keys() == {D1, D2}
    # All agree on the first day. The rows of the other attempt are read from its own folder, which has none here.
    assert [(found.day, found.recomputation) for found in certificate.disagreements] == [(D2, AS_BUILT)]
    assert _scratch(kit) == []


def test_other_code_or_other_inputs_are_not_compared_with_what_was_built(kit: Kit, spark_settings: Settings) -> None:
    kit.dataset(checks={})
    application = OfKit(kit, spark_settings)
    delivered(kit, D1)
    unit = application.build(D1)
    application.publisher.release(unit.id)
    corrected = FACT.replace("fee", "CAST(fee + 1 AS decimal(12,2)) AS fee")
    kit.dataset(fact=corrected, checks={})
    certificate = OfKit(kit, spark_settings).prove()
    assert certificate.passed
    assert AS_BUILT not in certificate.prints


def test_days_of_a_derived_dataset_are_computed_from_what_is_published_or_from_the_shadows_of_its_unit(
    kit: Kit, spark_settings: Settings
) -> None:
    kit.dataset(checks={})
    _totals(kit)
    application = OfKit(kit, spark_settings)
    delivered(kit, D1, D2)
    unit = application.build(D1, D2, names=("trips", "totals"))
    own, above = application.prover.prove(unit.id)[::-1]
    assert (own.dataset, above.dataset) == ("totals", "trips")
    assert own.passed
    assert own.prints[AS_BUILT][D1].rows == 6
    application.publisher.release(unit.id)
    published = application.prove("totals")
    assert published.passed
    assert published.prints[AS_BUILT] == own.prints[AS_BUILT]
    assert published.inputs == own.inputs


def test_rewrites_by_others_meanwhile_are_named_and_those_of_a_live_run_are_not(
    kit: Kit, spark_settings: Settings
) -> None:
    kit.dataset(checks={})
    application = OfKit(kit, spark_settings)
    delivered(kit, D1, D2, D3)
    unit = application.build(D1, D2)
    application.publisher.release(unit.id)

    class Meddling(SparkRecomputations):
        def recompute(self, *what: object) -> None:
            super().recompute(*what)  # type: ignore[arg-type]
            if application.ledger.deliveries("trips", [D3]):
                return
            live = application.build(D3)
            application.publisher.release(live.id)
            kit.spark.sql(
                f"DELETE FROM delta.`{path_of(kit.layout.published_path('trips'))}` WHERE day = DATE'{D2}' AND id = 1"
            )
            kit.spark.sql(
                f"DELETE FROM delta.`{path_of(kit.layout.raw_path('trips'))}` "
                f"WHERE _delivery_day = DATE'{D2}' AND CAST(_line AS STRING) LIKE '{D2},1,%'"
            )

    application.prover = replace(
        application.prover, recomputing=lambda _: Meddling(application.session, application.datasets, kit.layout)
    )
    certificate = application.prove("trips", D1)
    assert certificate.disagreements == ()
    assert certificate.touched == (f"published {D2}", f"raw {D2}")
    assert not certificate.passed


def _totals(kit: Kit) -> LoadedDataset:

    folder = kit.root / "datasets" / "totals"
    folder.mkdir(parents=True)
    document: Mapping[str, object] = {
        **{key: TRIPS[key] for key in ("partition_column", "start")},
        "name": "totals",
        "key": ["day", "kind"],
        "columns": {"day": {"type": "date"}, "kind": {"type": "string"}, "fee": {"type": "decimal(22,2)"}},
        "upstream": {"trips": {}},
        "measures": {"fee": {}},
    }
    (folder / "dataset.yaml").write_text(json.dumps(document))
    (folder / "fact.sql").write_text("SELECT day, kind, SUM(fee) AS fee FROM trips GROUP BY day, kind")
    catalog = load_folder(folder.parent)
    assert not catalog.problems
    return catalog.datasets["totals"]


def _folders(kit: Kit) -> list[Path]:
    return sorted(path for path in path_of(kit.layout.warehouse).rglob("*") if "_delta_log" not in path.parts)


def _scratch(kit: Kit) -> list[Path]:
    return [path for path in path_of(kit.layout.published_path("trips")).glob("_shadow/*") if path.name[0] in "pd"]


def test_changed_models_of_a_commit_are_compared_with_what_is_published(kit: Kit, spark_settings: Settings) -> None:
    kit.dataset(checks={})
    datasets = _totals(kit).folder.parent
    application = OfKit(kit, spark_settings)
    delivered(kit, D1, D2)
    unit = application.build(D1, D2, names=("trips", "totals"))
    application.publisher.release(unit.id)
    before = application.layouts()
    git(kit.root, "init", "-q", "-b", "main")
    git(kit.root, "add", "datasets")
    git(kit.root, "commit", "-qm", "as published")
    fact = datasets / "trips" / "fact.sql"
    fact.write_text(
        "SELECT day, id, kind, amount, CAST(IF(id = 7, fee * 2, fee) AS decimal(12,2)) AS fee FROM staging WHERE id <> 3"
    )
    git(kit.root, "commit", "-qam", "fees of 7 count twice")
    fact.write_text(FACT)
    changed = application.diff("HEAD")
    assert [one.dataset for one in changed.datasets] == ["trips"]
    (trips,) = changed.datasets
    assert [found.day for found in trips.days] == [D1, D2]
    assert {
        found.rows for found in trips.days if found.rows and (found.rows.removed, found.rows.changed) != (1, 1)
    } == set()
    assert (trips.days[0].old["row_count"], trips.days[0].new["row_count"]) == (60, 59)
    assert trips.days[0].rows is not None
    assert trips.days[0].rows.columns == {"fee": 1}
    assert (trips.followers, changed.same) == (("totals",), ("totals",))
    text = as_markdown(changed)
    assert "| `fee` | 2024-02-28 |" in text
    assert "id 7 | 7.25 | 14.5 | +7.25 |" in text
    assert application.diff("main~1").datasets == ()
    same = application.diff("main~1", "trips")
    assert "**Nothing changes.**" in as_markdown(same)
    fact.write_text("SELECT nothing FROM staging")
    git(kit.root, "commit", "-qam", "broken")
    broken = application.diff("main")
    assert broken.has_problems
    assert "fact.sql" in broken.datasets[0].problem
    assert (application.layouts(), _scratch(kit)) == (before, [])


def test_a_changed_model_of_a_commit_is_compared_with_the_rows_that_are_published(
    kit: Kit, spark_settings: Settings
) -> None:
    trips = kit.dataset(checks={})
    application, datasets = OfKit(kit, spark_settings), trips.folder.parent
    rows = [(D1, i, "a", 1.0, Decimal(f"{i % 9}.25")) for i in range(9)]
    kit.deliver(D1, *(",".join(map(str, row)) for row in rows))
    application.land(D1)
    kit.publish(trips, kit.rows(*rows))
    fact = datasets / "trips" / "fact.sql"
    fact.write_text(
        "SELECT day, id, kind, amount, CAST(IF(id = 7, fee * 2, fee) AS decimal(12,2)) AS fee FROM staging WHERE id <> 3"
    )
    git(kit.root, "init", "-q", "-b", "main")
    git(kit.root, "add", "datasets")
    git(kit.root, "commit", "-qm", "fees of 7 count twice")
    before = application.layouts()
    (found,) = application.diff("HEAD").datasets
    (day,) = found.days
    assert (found.dataset, found.problem, day.day) == ("trips", "", D1)
    assert (day.old["row_count"], day.new["row_count"]) == (9, 8)
    assert (day.old["fee"], day.new["fee"]) == (Decimal("38.25"), Decimal("42.25"))
    assert day.rows is not None
    assert (day.rows.removed, day.rows.changed, day.rows.columns) == (1, 1, {"fee": 1})
    assert (application.layouts(), _scratch(kit)) == (before, [])
