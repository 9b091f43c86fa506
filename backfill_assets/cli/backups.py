"""Commands that back up ledger and tables, and restore them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.backup.folder import Backup, BackupFolder
from backfill_assets.backup.restore import RestoreBackup
from backfill_assets.backup.take import TakeBackup
from backfill_assets.campaign.plan import shown_bytes
from backfill_assets.cli.output import Json, as_json, say, table
from backfill_assets.core.text import number_of
from backfill_assets.settings import place_of

_PLACE = "A folder, or s3://bucket/prefix."
_MOST = 20


def backup(
    to: Annotated[str, typer.Argument(help=f"{_PLACE} What an earlier backup there has is not copied again.")],
    keep: Annotated[int, typer.Option(help="Remove all but this many of the newest backups; 0 keeps all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Copy the ledger, and raw and published tables, as they are at one moment; runs go on meanwhile.

    backfill backup /mnt/backups/sales --keep 14
    """
    application = Application.from_env()
    taken = TakeBackup(application.warehouse).take(place_of(to, os.environ), keep)
    if json:
        as_json(taken)
        return
    made = taken.backup
    tables = number_of(len(made.tables), "table")
    say(f"backup {made}: {number_of(made.files, 'file')} ({shown_bytes(made.size)}) of {tables}, and the ledger")
    say(f"copied: {number_of(taken.new, 'new data file')} ({shown_bytes(taken.size)})")
    for one in taken.removed:
        say(f"removed: {one}")
    say(f"restore it with: backfill restore {to} --backup {made.id}")


def restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The folder that `backfill backup` was given.")],
    name: Annotated[str, typer.Option("--backup", help="The backup to restore; by default, the newest.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="Show the backups that are there, and restore none.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of the backups that are there, and restore none.")
    ] = False,
    instead: Annotated[
        bool,
        typer.Option(
            "--instead-of-its-ledger",
            help="Take the warehouse from its ledger, whose backups these are; that ledger is refused from then on.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Restore a backup into an empty ledger, and a warehouse that is empty or has lost files; nothing is overwritten.

    backfill restore /mnt/backups/sales
    """
    place = place_of(source, os.environ)
    if verify:
        _verify(BackupFolder(place), name, json=json)
        return
    if listed:
        _show([one for one in BackupFolder(place).all() if name in ("", one.id)], json=json)
        return
    application = Application.from_env()
    url, clock = application.settings.ledger_url, application.clock
    restoring = RestoreBackup(application.layout, url, clock, application.identity, instead_of_its_ledger=instead)
    done = restoring.run(place, name)
    settled = application.reconcile.run()
    if json:
        as_json({"restored": done, "reconciled": settled})
        return
    say(f"restored backup {done.backup}: {number_of(done.files, 'file')} ({shown_bytes(done.size)}) and the ledger")
    for line in (*done.warnings, *map(str, settled)):
        say(line)
    say("staging is built again by the next launch of each day; next: backfill doctor --repair")
    if any(one.kind.left for one in settled):
        raise typer.Exit(1)


def _verify(folder: BackupFolder, name: str, *, json: bool) -> None:
    """Say which backups can be restored; exit code 1 if one cannot."""
    unread = {} if name else {place.parent.name: (place,) for place in folder.undescribed()}
    backups = [folder.chosen(name)] if name else folder.all()
    if not backups and not unread:
        folder.chosen()  # says that there is none
    damaged = {**folder.damaged(backups), **unread}
    for backup, places in () if json else damaged.items():
        say(f"{backup}: damaged: {number_of(len(places), 'file')}" if places else f"{backup}: whole")
        for place in places[:_MOST]:
            say(f"  {place} is gone, cannot be read, or has other bytes than were saved")
    if json:
        as_json({one: [str(place) for place in places] for one, places in damaged.items()})
    elif any(damaged.values()):
        say("remove the damaged files below files/: the next backup stores those again that the warehouse still has")
    if any(damaged.values()):
        raise typer.Exit(1)


def _show(backups: Sequence[Backup], *, json: bool) -> None:
    if json:
        as_json(backups)
        return
    table(
        ("backup", "of (UTC)", "by", "tables", "files", "size"),
        [
            (one.id, f"{one.at:%Y-%m-%d %H:%M:%S}", one.by, len(one.tables), one.files, shown_bytes(one.size))
            for one in backups
        ],
    )
