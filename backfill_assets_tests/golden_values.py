"""What must not change while code moves: hashes, ledger rows, texts, commands, what they print, Dagster's names.

`python -m backfill_assets_tests.golden_values` writes them again. Do so in a commit of its own that says why they change.
"""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
import typer
from sqlalchemy import Connection, MetaData, RowMapping, Table, create_engine
from typer.testing import CliRunner

import backfill_assets
from backfill_assets.application import Application
from backfill_assets.campaign.state import Action
from backfill_assets.cli.app import app
from backfill_assets.core.canonical import digest, to_json
from backfill_assets.core.content import Content, KeptDay
from backfill_assets.core.delivery import Deed
from backfill_assets.core.expected_change import parse_change
from backfill_assets.core.release import ReleaseKind, layout_digest
from backfill_assets.core.unit import AttemptState, StagedDay, UnitState, Work
from backfill_assets.ledger.open import open_ledger
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.settings import Settings
from backfill_assets.system import SystemClock, SystemUser
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.specifications import NAME
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.ledger.campaign_samples import (
    a_campaign,
    a_plan,
    a_specification,
    an_approval,
    an_entry,
)
from backfill_assets_tests.unit.ledger.proof_samples import a_certificate, a_comparison
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    NOON,
    a_delivery,
    a_hold,
    a_launch,
    a_manifest,
    a_unit,
    march,
    some_evidence,
)
from backfill_assets_tests.unit.orchestration.house import BOTH, House

FOLDER: Final = Path(__file__).parent / "unit" / "golden_values"
_PACKAGE: Final = Path(inspect.getfile(backfill_assets)).parent


def hashes() -> dict[str, object]:
    """The hashes on which evidence, approvals and releases depend, and the stored JSON."""
    plan, manifest = a_plan(a_specification()), a_manifest("r_1", march(1, 2))
    contract = a_specification().contract(("flights",))
    narrowed = a_manifest("r_2", march(1), kind=ReleaseKind.rollback)
    return {
        "evidence": {str(d): some_evidence("u_1", 1, d).hash for d in march(1, 3)},
        "layout": layout_digest(some_evidence("u_1", 1, march(1)[0]).shadow_files),
        "specification": a_specification().hash,
        "plan": [plan.fingerprint, to_json(plan)],
        "manifest": [manifest.to_json(), narrowed.to_json()],
        "contract": [contract.of("flights").hash, digest(contract), digest(parse_change("-1.5% to -0.8%", "here"))],
        "certificate": digest(a_certificate(march(1, 2))),
        "comparison": digest(a_comparison(march(1)[0], 1)),
    }


def ledger(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows of a ledger with one record of each kind, as they are in the database."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    observed, days = open_ledger(url, FixedClock(NOON)), march(1, 3)
    unit = observed.assign(a_launch(days), a_unit(days, contract=a_specification().contract(("flights",))))
    observed.add_deliveries([a_delivery(d) for d in days])
    observed.change_deliveries([a_delivery(days[2])], Deed.withdrawn, "ada", "sent twice")
    observed.add_staged([StagedDay("flights", days[0], "i", "c", 7)])
    attempt = observed.start_attempt(unit.id, "flights", days, "run_1", LEASE)
    observed.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, d) for d in days])
    observed.add_comparisons(attempt.number, [a_comparison(days[0], attempt.number)])
    observed.end_attempt(attempt.number, AttemptState.done, Work(9, 100, dt.timedelta(seconds=2)))
    observed.add_contents("flights", {days[0]: ("layout", Content("i", "rows"))})
    kept = Content("f", "", "i", ("d0", "d1"), {"cities": "one"}, "parts")
    observed.keep([KeptDay("flights", days[0], "about", kept, ("checks", "code"), "ada", NOON, "the same rows")])
    observed.add_campaign(a_campaign(), an_entry(Action.planned))
    observed.approve(an_approval(days[:2]), an_entry(Action.approved, detail="two days"))
    observed.add_certificate(a_certificate(days[:2]))
    observed.intend(a_manifest("r_1", days))
    observed.finalize("r_1", 3, NOON, UnitState.published)
    observed.hold([a_hold(days[0])])
    observed.close()
    return _rows_of(url)


def texts() -> list[str]:
    """Every sentence that the package may say: its strings of three words or more, without docstrings, values as `{}`."""
    found: set[str] = set()
    for file in sorted(_PACKAGE.rglob("*.py")):
        if not {"datasets", "migrations"} & set(file.relative_to(_PACKAGE).parts):
            found |= set(_texts_of(ast.parse(file.read_text())))
    return sorted(found)


def commands() -> dict[str, Any]:
    """Every command with its help and all its parameters; not as printed, because that depends on the terminal."""
    return _described(typer.main.get_command(app))


def printed(house: House) -> dict[str, Any]:
    """What commands print for programs, of a house where a campaign was published and rolled back, and a plain unit is open."""
    world = house.world
    _, unit = world.approved(approval={"required": True, "by": ["finance-controller"]})
    world.release().publish(NAME)
    release = world.ledger.releases(unit=unit.id)[0].manifest.release
    world.campaign_rollback().execute(release, "the tax is wrong")
    world.build(world.open_unit(dict.fromkeys(BOTH, (day(4),))), "sales", {day(4): [1, 2]}, passed=False)
    asked = (
        "status --json", f"status {unit.id} --json", f"status {NAME} --json", "releases --json", "doctor --json",
        "metrics --json", "deliveries sales --json", "list --json", "history sales --json", "sweep --json",
        f"report {NAME} --json", f"cleanup {NAME} --dry-run --json", "path sales",
    )  # fmt: skip
    return {_plain(words, house): _printed(words.split(), house) for words in asked}


def dagster_names() -> dict[str, Any]:
    """Assets, checks, jobs, schedules, sensors and resources of the bundled datasets, with their keys, groups and wiring."""
    with tempfile.TemporaryDirectory() as state:
        settings = Settings.from_env({"BACKFILL_ASSETS_STATE": state})
        return _names_of(definitions_of(Application(settings)))


@contextmanager
def a_house() -> Iterator[House]:
    """A house with a stopped clock, which commands open."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environ:
        house = House(Path(folder), environ)
        environ.setattr(SystemClock, "now", lambda _: house.world.clock.now())
        environ.setattr(SystemUser, "name", lambda _: "ada")
        (Path(folder) / "home").mkdir()
        environ.setenv("DAGSTER_HOME", str(Path(folder) / "home"))
        yield house
        house.close()


def all_of() -> dict[str, object]:
    """All golden values, by the name of their file."""
    with tempfile.TemporaryDirectory() as folder:
        of_the_ledger = ledger(Path(folder))
    with a_house() as house:
        of_commands = printed(house)
    return {
        "hashes": hashes(), "ledger": of_the_ledger, "texts": texts(), "commands": commands(), "printed": of_commands,
        "dagster": dagster_names(),
    }  # fmt: skip


def as_text(value: object) -> str:
    """A golden value as it is in its file."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n"


def _rows_of(url: str) -> dict[str, list[dict[str, Any]]]:
    engine, metadata = create_engine(url), MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        rows = {
            # `worker` names the process.
            table.name: [{**row, "worker": ""} if "worker" in row else dict(row) for row in _all(connection, table)]
            for table in metadata.sorted_tables
            if table.name not in ("alembic_version", "meta")
        }
    engine.dispose()
    return rows


def _all(connection: Connection, table: Table) -> Sequence[RowMapping]:
    return connection.execute(table.select()).mappings().all()


def _texts_of(tree: ast.Module) -> Iterator[str]:
    observed = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    parts = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values}
    for one in ast.walk(tree):
        text = ""
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in observed | parts:
            text = one.value
        elif isinstance(one, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in one.values)
        if len(text.split()) > 2:  # fewer are names
            yield text


def _described(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"help": command.help, "parameters": [_parameter(one) for one in command.params]}
    if below := getattr(command, "commands", None):
        found["commands"] = {name: _described(one) for name, one in below.items()}
    return found


def _parameter(one: Any) -> dict[str, Any]:
    annotation = one.type_descriptor.annotation if hasattr(one, "type_descriptor") else str
    kind = getattr(annotation, "__name__", str(annotation))
    plain = isinstance(one.default, str | int | float | bool | None)
    return {
        "names": [*one.opts, *one.secondary_opts], "help": getattr(one, "help", None), "required": one.required,
        "default": one.default if plain else "", "many": one.multiple or one.nargs != 1, "type": re.sub(r"[\w.]+\.", "", kind),
        "metavar": one.metavar, "hidden": getattr(one, "hidden", False),
    }  # fmt: skip


def _printed(words: Sequence[str], house: House) -> object:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return {"refused": _plain(f"{type(done.exception).__name__}: {done.exception}", house)}
    assert done.stdout, f"{words} printed nothing: {done.output}"
    said = _plain(done.stdout, house)
    return {"exit": done.exit_code, "said": json.loads(said) if "--json" in words else said}


def _plain(text: str, house: House) -> str:
    """The text without what differs from run to run: the folder, names and times of Parquet files, and hashes of these."""
    text = text.replace(str(house.world.folder), "FOLDER")
    text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r'"worker": "[^"]*"', '"worker": ""', text)
    return re.sub(r'("modified(?:_at)?": |"modification_time": )[0-9]+', r"\1 0", text)


def _names_of(definitions: dg.Definitions) -> dict[str, Any]:
    graph = definitions.resolve_asset_graph()
    repository = definitions.get_repository_def()
    assets = {
        key.to_user_string(): {
            "group": node.group_name, "parents": sorted(parent.to_user_string() for parent in node.parent_keys),
            "description": node.description, "partitions": str(node.partitions_def), "kinds": sorted(node.kinds),
            "tags": dict(node.tags), "metadata": sorted(node.metadata),
        }
        for key, node in ((key, graph.get(key)) for key in graph.get_all_asset_keys())
    }  # fmt: skip
    checks = {
        key.to_user_string(): [graph.get_check_spec(key).description, graph.get_check_spec(key).blocking]
        for key in graph.asset_check_keys
    }
    jobs = {
        job.name: {
            "ops": sorted(node.name for node in job.nodes), "tags": dict(job.tags), "description": job.description,
            "config": sorted(job.run_config_schema.config_type.fields),
        }
        for job in repository.get_all_jobs()
    }  # fmt: skip
    schedules = {one.name: [one.job_name, one.cron_schedule, one.description] for one in repository.schedule_defs}
    sensors = {one.name: [one.minimum_interval_seconds, one.description] for one in repository.sensor_defs}
    return {
        "assets": assets, "checks": checks, "jobs": jobs, "schedules": schedules, "sensors": sensors,
        "resources": sorted(repository.get_top_level_resources()),
    }  # fmt: skip


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, value in all_of().items():
        (FOLDER / f"{name}.json").write_text(as_text(value))
