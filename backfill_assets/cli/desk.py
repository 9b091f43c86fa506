"""Opens the use cases of campaigns on the Dagster instance of DAGSTER_HOME."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from backfill_assets.application import Application
from backfill_assets.cli.output import without_secrets_of
from backfill_assets.core.errors import BackfillError, CampaignError
from backfill_assets.core.text import in_one_line

if TYPE_CHECKING:
    from backfill_assets.orchestration.backfills import Desk


Webserver = Annotated[
    str, typer.Option(envvar="BACKFILL_ASSETS_WEBSERVER", help="URL of a Dagster webserver to launch through.")
]


def campaign_of(application: Application, name: str) -> str:
    """The campaign of that name, or the one that the unit of that name was opened for; empty for any other unit.

    Raises:
        UnitError: there is no campaign and no unit of that name.
    """
    if name in {campaign.id for campaign in application.ledger.campaigns()}:
        return name
    return application.ledger.unit(name).campaign


def backfill_slots(environ: Mapping[str, str]) -> int | None:
    """How many runs of backfills the run queue starts at once, by the instance's dagster.yaml; none if nobody says so."""
    file = Path(environ.get("DAGSTER_HOME", ""), "dagster.yaml")
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        runs = config["concurrency"]["runs"]
        limits = [limit["limit"] for limit in runs["tag_concurrency_limits"] if limit["key"] == "dagster/backfill"]
        return int(min([*limits, runs["max_concurrent_runs"]]))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, yaml.YAMLError):
        # An instance set up in another way is no fault of the plan.
        return None


def _said(error: Exception) -> str:
    return without_secrets_of(os.environ, in_one_line(error))


@contextmanager
def opened_desk(application: Application, webserver: str) -> Iterator[Desk]:
    """The use cases, as long as the block lasts.

    Raises:
        CampaignError: DAGSTER_HOME is not set, or names no instance that can be opened; a campaign is launched, watched and
            cancelled through Dagster.
    """
    import dagster as dg  # takes longer to import than other commands take to run

    from backfill_assets.orchestration.backfills import desk_of  # loads Dagster
    from backfill_assets.orchestration.instance import opened_instance  # loads Dagster

    if not os.environ.get("DAGSTER_HOME"):
        raise CampaignError("DAGSTER_HOME is not set: campaigns run through Dagster; set it to the project's folder")
    try:
        found = opened_instance()
    except BackfillError:
        raise
    except (dg.DagsterError, OSError, ValueError, yaml.YAMLError) as error:
        raise CampaignError(
            f"DAGSTER_HOME={os.environ['DAGSTER_HOME']!r} names no instance of Dagster: {_said(error)}; set it to the "
            "project's folder, and see that its dagster.yaml is whole"
        ) from error
    except Exception as error:  # each driver of a database has errors of its own
        raise CampaignError(
            f"the instance of Dagster in DAGSTER_HOME={os.environ['DAGSTER_HOME']!r} cannot be opened: {_said(error)}; see "
            "that its database is up and can be reached"
        ) from error
    with found as instance:
        yield desk_of(application, instance, webserver)
