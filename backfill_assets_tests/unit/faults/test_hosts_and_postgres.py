"""Processes of two hosts on one Postgres ledger, and Postgres killed between any two steps of a release."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.core.errors import LedgerError
from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.ledgers import empty_postgres_ledger
from backfill_assets_tests.harness.world import QUICK, World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, POINTS, assert_one_command_finishes_it, ready, refusal
from backfill_assets_tests.unit.ledger.processes import together

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
ONE_NAME = (
    "the two hosts are two processes under one name, as no network namespaces can be made (by unshare: as root with "
    "CAP_SYS_ADMIN, or where users may make namespaces)"
)
# Each process opens the world as another host: with its own name, and no network that the other one could see.
ON_A_HOST = """
import socket, sys, time
from pathlib import Path
from backfill_assets_tests.harness.world import World
url, folder, me = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
world = World(folder / "world", first_id=1000 * (me + 1), ledger=url)
(folder / f"ready-{me}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
print("host", socket.gethostname())
for unit in (folder / "units").read_text().split():
    print(type(world.publisher().release(unit)).__name__, unit)
world.close()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


def separated(number: int) -> list[str]:
    """The command that runs a program on a host of its own; empty if this user may not make namespaces."""
    program = shutil.which("unshare")
    if program is None:
        return []
    own = [program, "--net", "--uts", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    named = [*own, "sh", "-c", f'hostname host-{number} && exec "$@"', "sh"]
    works = subprocess.run([*named, "true"], check=False, capture_output=True).returncode == 0
    return named if works else []


def test_two_hosts_publish_the_same_units_on_one_postgres_ledger_each_once(
    cluster: str, observed: Observed, tmp_path: Path
) -> None:
    url = empty_postgres_ledger(cluster, "two_hosts")
    (tmp_path / "world").mkdir()
    world = World(tmp_path / "world", ledger=url)
    world.released({d: [0] for d in DAYS})
    units = []
    for number, target in enumerate(DAYS):
        unit = world.open_unit({"sales": [target]})
        world.build(unit, "sales", {target: [number + 10]})
        units.append(unit.id)
    (tmp_path / "units").write_text(" ".join(units))
    first, second = separated(1), separated(2)
    if not first:
        observed.weaker(ONE_NAME)
    observed.injected(
        f"two processes {'in network namespaces of their own, on a ledger by a socket,' if first else 'under one name'} "
        f"publish the same {len(units)} units at once"
    )
    printed = together(ON_A_HOST, url, tmp_path, 2, 1, within=[first, second])
    lines = [tuple(line.split()) for lines in printed for line in lines]
    hosts = {line[1] for line in lines if line[0] == "host"}
    assert hosts == {"host-1", "host-2"} if first else len(hosts) == 1
    assert Counter(line[0] for line in lines if line[0] != "host") == {
        "Released": len(units), "AlreadyReleased": len(units),
    }  # fmt: skip
    assert world.content() == {DAYS[n]: [n + 10] for n in range(3)}
    assert world.doctor().examine() == ()
    observed.found(f"{', '.join(sorted(hosts))}: each unit released once, the other host was told so")
    world.close()


@pytest.fixture(scope="module")
def mortal() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


@pytest.mark.parametrize(("command", "step"), POINTS, ids=lambda value: value)
def test_postgres_is_killed_before_a_step_of_a_release(
    mortal: str, observed: Observed, tmp_path: Path, command: str, step: str
) -> None:
    server = postgres.Killable(mortal)
    world = World(tmp_path, ledger=empty_postgres_ledger(mortal, f"killed_{command}_{step}"))
    unit = ready(world, command)
    observed.injected(f"kill -9 of Postgres before {step} of a {command}")
    killed = []

    def kill(call: str) -> None:
        if call == step and not killed:
            server.kill()
            killed.append(call)

    try:
        refused = refusal(world, command, unit, kill)
    finally:
        server.start()
    assert refused is None or isinstance(refused, LedgerError)
    assert world.content() in (OLD, NEW)
    world.clock.advance(5 * QUICK.lease)
    observed.found(refused or "it went through", *assert_one_command_finishes_it(world, command, unit))
    world.close()
