"""Approval: who may approve, and which days of a unit are not approved as they are now."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from backfill_assets.core.errors import ApprovalError
from backfill_assets.core.evidence import DatasetDay, DayEvidence

if TYPE_CHECKING:
    from backfill_assets.campaign.specification import ApprovalRule
    from backfill_assets.campaign.state import Approval


Roles = Mapping[str, Collection[str]]
"""The users of each role."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")


def parse_roles(text: str) -> dict[str, tuple[str, ...]]:
    """Read `finance-controller=anna,ben; data-lead=carl`.

    Raises:
        ValueError: the text is anything else, or names a role twice.
    """
    roles: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        role, sign, users = (piece.strip() for piece in part.partition("="))
        names = tuple(user.strip() for user in users.split(","))
        if not sign or not all(_WORD.fullmatch(word) for word in (role, *names)):
            raise ValueError(
                f"{part!r} is not a role with its users; write finance-controller=anna,ben; data-lead=carl"
            )
        if role in roles:
            raise ValueError(f"the role {role!r} appears twice; name all its users in one place")
        roles[role] = names
    return roles


def approver_of(rule: ApprovalRule, by: str, identity: str, roles: Roles) -> str:
    """The name in the rule's list under which the user may approve; `by` is the name that the user claims, if any.

    If a rule lists no name, every user may approve, under their own name.

    Raises:
        ApprovalError: the claimed name is not in the list, or the user is neither that name nor in that role; without a
            claim, this holds for every name in the list.
    """
    listed = ", ".join(rule.by)
    if by and rule.by and by not in rule.by:
        raise ApprovalError(f"{by!r} may not approve; approval.by of the specification lists {listed}")
    wanted = (by,) if by else rule.by or (identity,)
    for name in wanted:
        if identity == name or identity in roles.get(name, ()):
            return name
    raise ApprovalError(
        f"user {identity!r} is not {' or '.join(repr(name) for name in wanted)}, nor in a role of that name; approval.by "
        f"of the specification lists {listed or 'no name'}, and BACKFILL_ASSETS_ROLES says who is in a role"
    )


def require_another(rule: ApprovalRule, identity: str, own: Mapping[str, str], roles: Roles) -> None:
    """Refuse the campaign's own people if the rule requires another approver.

    `own` maps their names to what each of them is to the campaign; a role stands for all its users.

    Raises:
        ApprovalError: the user is one of them.
    """
    if not rule.not_owner:
        return
    for name, part in own.items():
        if identity == name or identity in roles.get(name, ()):
            shown = identity if identity == name else f"{identity} (in {name})"
            raise ApprovalError(
                f"{shown} {part} and may not approve it: approval.not_owner of the specification requires another user"
            )


def may_approve(rule: ApprovalRule, given: Approval, own: Mapping[str, str], roles: Roles) -> bool:
    """Whether an approval is allowed by these roles: it is checked again wherever it is used."""
    try:
        approver_of(rule, given.by, given.identity, roles)
        require_another(rule, given.identity, own, roles)
    except ApprovalError:
        return False
    return True


def signature(given: Approval) -> str:
    """Who gave an approval, and under which name: `anna as finance-controller`."""
    return given.identity if given.by == given.identity else f"{given.identity} as {given.by}"


def unapproved(
    evidence: Mapping[DatasetDay, DayEvidence],
    approvals: Iterable[Approval],
    withdrawn: Mapping[DatasetDay, int] | None = None,
) -> tuple[DatasetDay, ...]:
    """The days whose current evidence is not approved, in order.

    `withdrawn` is the number of the rollback that took a day's release back: earlier approvals do not count.
    """
    edges = withdrawn or {}
    given: dict[DatasetDay, set[str]] = {}
    for approval in approvals:
        for day, seen in approval.days.items():
            if approval.after_release >= edges.get(day, 0):
                given.setdefault(day, set()).add(seen)
    return tuple(sorted(day for day, found in evidence.items() if found.hash not in given.get(day, ())))


def approvers(evidence: Mapping[DatasetDay, DayEvidence], approvals: Iterable[Approval]) -> tuple[str, ...]:
    """Who has approved the current evidence: `anna as finance-controller`, in order of their approvals."""
    names = (
        signature(approval)
        for approval in approvals
        if any(day in evidence and evidence[day].hash == seen for day, seen in approval.days.items())
    )
    return tuple(dict.fromkeys(names))
