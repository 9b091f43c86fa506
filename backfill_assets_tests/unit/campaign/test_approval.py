"""Who may approve, and what is unapproved in its present state."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.campaign.approval import approver_of, approvers, parse_roles, require_another, unapproved
from backfill_assets.campaign.specification import ApprovalRule
from backfill_assets.campaign.state import Approval
from backfill_assets.core.errors import ApprovalError
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence
from backfill_assets.core.measured import NOTHING, DayMeasurement, SourceState

ROLES = {"finance-controller": ("anna", "ben"), "data-lead": ("carl",)}
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def rule(*by: str, not_owner: bool = False) -> ApprovalRule:
    return ApprovalRule(required=True, by=by, not_owner=not_owner)


def evidence(day: dt.date, content: int, dataset: str = "sales") -> DayEvidence:
    basis = Basis(str(content), "c0de", "k", "p")
    measured = DayMeasurement(day, NOTHING, NOTHING, NOTHING, SourceState())
    return DayEvidence("u", 1, dataset, day, basis, (), measured, (), NOW)


def approval(found: dict[DatasetDay, DayEvidence], after: int = 0, by: str = "anna") -> Approval:
    return Approval("u", "e", by, "anna", NOW, {day: e.hash for day, e in found.items()}, after)


def test_roles_are_read_with_their_users() -> None:
    assert parse_roles(" finance-controller=anna, ben ;data-lead=carl; ") == ROLES
    assert parse_roles("") == {}


@pytest.mark.parametrize("text", ["anna", "=anna", "role=", "role=anna,,ben", "a b=carl", "a=b=c"])
def test_other_roles_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a role with its users"):
        parse_roles(text)


def test_a_role_is_named_once() -> None:
    with pytest.raises(ValueError, match="'a' appears twice"):
        parse_roles("a=anna;a=ben")


@pytest.mark.parametrize(
    ("by", "user", "expected"),
    [
        ("", "anna", "finance-controller"),
        ("finance-controller", "ben", "finance-controller"),
        ("", "carl", "data-lead"),
        ("", "dora", "dora"),
        ("dora", "dora", "dora"),
    ],
)
def test_a_user_approves_in_a_name_or_role_of_the_list(by: str, user: str, expected: str) -> None:
    assert approver_of(rule("finance-controller", "data-lead", "dora"), by, user, ROLES) == expected


@pytest.mark.parametrize(
    ("by", "user", "match"),
    [
        ("", "eve", "'eve' is not 'finance-controller' or 'dora'"),
        ("finance-controller", "carl", "'carl' is not 'finance-controller', nor in a role"),
        ("dora", "anna", "'anna' is not 'dora'"),
        ("data-lead", "carl", "'data-lead' may not approve; .* lists finance-controller, dora"),
    ],
)
def test_a_user_outside_the_list_cannot_approve_under_any_name(by: str, user: str, match: str) -> None:
    with pytest.raises(ApprovalError, match=match):
        approver_of(rule("finance-controller", "dora"), by, user, ROLES)


def test_a_rule_without_names_lets_everybody_approve_in_their_own_name() -> None:
    assert approver_of(ApprovalRule(required=False), "", "eve", {}) == "eve"


@pytest.mark.parametrize("user", ["carl", "ada"])
def test_owner_and_launcher_may_not_approve_where_the_rule_excludes_them(user: str) -> None:
    own = {"data-lead": "owns this campaign", "ada": "launched this campaign"}
    with pytest.raises(ApprovalError, match=r"this campaign and may not approve it: approval\.not_owner"):
        require_another(rule("x", not_owner=True), user, own, ROLES)
    require_another(rule("x"), user, own, ROLES)
    require_another(rule("x", not_owner=True), "anna", own, ROLES)


days = st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 6))
contents = st.dictionaries(days, st.integers(0, 2))


@given(contents, st.lists(contents, max_size=4))
def test_a_day_is_approved_exactly_when_its_present_evidence_has_an_approval(
    now: dict[dt.date, int], seen: list[dict[dt.date, int]]
) -> None:
    found = {("sales", d): evidence(d, content) for d, content in now.items()}
    given_ = [approval({("sales", d): evidence(d, c) for d, c in one.items()}) for one in seen]
    expected = sorted(d for d, content in now.items() if not any(one.get(d) == content for one in seen))
    assert [day for _, day in unapproved(found, given_)] == expected


def test_a_withdrawn_approval_counts_for_no_day_until_it_is_given_again() -> None:
    target = ("sales", dt.date(2024, 1, 1))
    found = {target: evidence(target[1], 1)}
    old, new = approval(found, 6), approval(found, 7)
    edges = {target: 7}
    assert unapproved(found, [old], edges) == (target,)
    assert unapproved(found, [old, new], edges) == ()


def test_approvers_are_those_of_the_present_evidence() -> None:
    target = ("sales", dt.date(2024, 1, 1))
    found, other = {target: evidence(target[1], 1)}, {target: evidence(target[1], 2)}
    given_ = [approval(other, by="carl"), approval(found, by="finance-controller"), approval(found)]
    assert approvers(found, given_) == ("anna as finance-controller", "anna")
