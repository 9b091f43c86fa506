"""Tables in a bucket, behind a network that loses, delays and refuses requests."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from deltalake import write_deltalake

from backfill_assets.core.errors import BackfillError
from backfill_assets.doctor.findings import RepairKind
from backfill_assets.release.adopt import Adoption
from backfill_assets_tests.harness.bad_network import OF_A_GOOD_STORE, BadNetwork, Fault, Rule, bad_network
from backfill_assets_tests.harness.objects import BUCKET, ROOT_VARIABLE, ObjectStore, object_store, place_at
from backfill_assets_tests.harness.tables import rows_of
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.harness.world import World, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import COMMANDS, DAYS, NEW, OLD, assert_one_command_finishes_it, ready, say
from backfill_assets_tests.unit.faults.test_standing_still import (
    BOTH,
    assert_it_can_be_published_again,
    contents,
    ready_unit,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow]
_CASES = itertools.count()
_EVERY = 3
_TRIED = [fault for fault in OF_A_GOOD_STORE if fault is not Fault.slow]

REQUESTS = {
    "the manifest": ("PUT", r"_releases/"),
    "the commit": ("PUT", r"published/sales/_delta_log/\d+\.json"),
    "the list of the log": ("LIST", r"published/sales/_delta_log"),
    "a commit that is read": ("GET", r"published/sales/_delta_log/\d+\.json"),
    "a copy of the shadow's log": ("PUT", r"_sealed_log/"),
    "the removal of the shadow's log": ("POST|DELETE", ""),
}
OF_A_PUBLICATION = {"a copy of the shadow's log", "the removal of the shadow's log"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(scope="module")
def network(store: ObjectStore) -> Iterator[BadNetwork]:
    with bad_network(store.environ["AWS_ENDPOINT_URL"]) as between, pytest.MonkeyPatch.context() as patch:
        for name, value in {**store.environ, "AWS_ENDPOINT_URL": between.url, ROOT_VARIABLE: str(store.folder)}.items():
            patch.setenv(name, value)
        yield between


@pytest.fixture
def remote(store: ObjectStore, network: BadNetwork) -> Iterator[World]:
    """A world whose tables lie in the bucket."""
    assert network.url
    folder = store.folder / BUCKET / f"case{next(_CASES)}"
    folder.mkdir()
    world = World(folder)
    yield world
    world.close()


def said(network: BadNetwork, world: World, command: str, unit: str, rule: Rule) -> tuple[str, list[str]]:
    """Say a command while a rule is in force: its refusal, or that it went through; and the request that the rule hit."""
    with network.under(rule) as hit:
        try:
            say(world, command, unit)
            answer = "it went through"
        except BackfillError as error:
            answer = str(error)
    return answer, hit


@pytest.mark.parametrize("fault", OF_A_GOOD_STORE, ids=lambda fault: fault.name)
@pytest.mark.parametrize(
    ("command", "what"),
    [(c, w) for c in COMMANDS for w in REQUESTS if c == "publish" or w not in OF_A_PUBLICATION],
)
def test_a_request_goes_wrong(
    remote: World, network: BadNetwork, observed: Observed, command: str, what: str, fault: Fault
) -> None:
    unit = ready(remote, command)
    answer, hit = said(network, remote, command, unit, Rule(fault, *REQUESTS[what]))
    assert hit
    observed.injected(f"a {command}, {what}: {fault}")
    observed.found(answer, *assert_one_command_finishes_it(remote, command, unit))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_store_refuses_from_some_look_at_the_place_of_an_adopted_table_on(
    store: ObjectStore, network: BadNetwork, observed: Observed, command: str
) -> None:
    """A release that is committed must not count as a failed one because nobody can look up where its table is.

    Every sixth look, because there are some forty.
    """
    refused = 0
    for number in itertools.count(step=6):
        folder = store.folder / BUCKET / f"case{next(_CASES)}"
        lake = folder / "lake" / "sales"
        write_deltalake(lake, rows_of({DAYS[0]: [5]}).select(["id", "day", "amount"]), partition_by=["day"])
        world = World(folder)
        Adoption(world.warehouse()).adopt("sales", place_at(lake), "ours now")
        unit = ready(world, command)
        expired = Rule(Fault.expired, "GET", r"_backfill_assets\.json", skipped=number, for_good=True)
        answer, hit = said(network, world, command, unit, expired)
        if hit:
            refused += answer != "it went through"
            assert_one_command_finishes_it(world, command, unit)
        world.close()
        if not hit:
            break
    assert refused
    observed.injected(
        f"the credentials expire at every sixth look at the place of an adopted table, while a {command} is made"
    )
    observed.found(f"{refused} were refused and said again")


@pytest.mark.parametrize("command", COMMANDS)
def test_credentials_expire_from_some_request_on(
    remote: World, network: BadNetwork, observed: Observed, command: str
) -> None:
    unit = ready(remote, command)
    answer, _ = said(network, remote, command, unit, Rule(Fault.expired, "PUT", for_good=True))
    assert answer != "it went through"
    observed.injected(f"the credentials expire with the first write of a {command}, until they are renewed")
    observed.found(answer, *assert_one_command_finishes_it(remote, command, unit))


@pytest.mark.parametrize(("method", "key"), [("PUT", "_sealed_log/"), ("POST|DELETE", "")])
def test_a_seal_that_is_cut_off_is_found_and_repaired(
    remote: World, network: BadNetwork, observed: Observed, method: str, key: str
) -> None:
    unit = ready(remote)
    answer, _ = said(network, remote, "publish", unit, Rule(Fault.expired, method, key, for_good=True))
    observed.injected(f"the credentials expire when a {method} of the sealing begins")
    assert remote.content() == NEW
    assert [found.repair and found.repair.kind for found in remote.doctor().examine()] == [RepairKind.seal]
    repaired(remote)
    observed.found(answer, "the doctor found it and repaired it")


def test_a_store_that_copies_nothing_loses_no_log(remote: World, network: BadNetwork, observed: Observed) -> None:
    unit = ready(remote)
    observed.injected("the store says that it copied the log of a shadow, and did not")
    answer, hit = said(network, remote, "publish", unit, Rule(Fault.no_copy, "PUT", r"_sealed_log/", for_good=True))
    assert hit
    assert "the store said that it copied" in answer
    assert remote.content() == NEW
    observed.found(answer, *assert_one_command_finishes_it(remote, "publish", unit))


def test_a_commit_that_the_store_makes_when_its_client_has_given_up_is_taken_back(
    store: ObjectStore, network: BadNetwork, observed: Observed
) -> None:
    folder = store.folder / BUCKET / f"case{next(_CASES)}"
    folder.mkdir()
    two = World(folder, BOTH)
    unit = ready_unit(two)
    observed.injected(
        "the store makes the second commit of a publication when its client no longer waits for an answer"
    )
    late = Rule(Fault.late, "PUT", r"published/sales/_delta_log/\d+\.json")
    with network.under(late) as hit, pytest.raises(BackfillError) as refused:
        two.publisher().release(unit)
    assert hit
    assert contents(two) == (OLD, OLD)
    wait_for(lambda: contents(two) == (OLD, NEW), "the store to make the commit", 60)
    two.clock.advance(dt.timedelta(minutes=5))
    two.reconcile().run()
    observed.found(refused.value, "the late commit is taken back; the same unit is released in the end")
    assert_it_can_be_published_again(two, unit)
    two.close()


@pytest.mark.parametrize("fault", _TRIED, ids=lambda fault: fault.name)
@pytest.mark.parametrize("command", COMMANDS)
def test_any_request_goes_wrong(
    store: ObjectStore, network: BadNetwork, observed: Observed, command: str, fault: Fault
) -> None:
    """Each request meets two of the six faults: all of them at all requests took an hour and found no more."""
    outcomes = Counter[str]()
    first = _TRIED.index(fault) % _EVERY
    # Made once: to make it takes longer than the command.
    made = store.folder / BUCKET / f"case{next(_CASES)}"
    made.mkdir()
    beginning = World(made)
    unit = ready(beginning, command)
    beginning.close()
    for number in itertools.count(first, _EVERY):
        folder = store.folder / BUCKET / f"case{next(_CASES)}"
        shutil.copytree(made, folder)
        world = World(folder, first_id=1_000)
        answer, hit = said(network, world, command, unit, Rule(fault, skipped=number))
        if hit:
            outcomes["it went through" if answer == "it went through" else "refused"] += 1
            assert_one_command_finishes_it(world, command, unit)
        world.close()
        if not hit:
            break
    assert outcomes.total() > 1
    observed.injected(f"{outcomes.total()} requests of a {command} in turn, each third: {fault}")
    observed.found(f"{outcomes['it went through']} went through, {outcomes['refused']} were refused and said again")
