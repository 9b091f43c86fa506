"""The application puts the guard before every way to readers, and attaches the follow-up to every release."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.application import Application
from backfill_assets.settings import Settings
from backfill_assets.system import SystemUser


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application(
        Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_ROLES": "lead=anna"})
    )


def test_every_publisher_has_the_guard(application: Application) -> None:
    assert application.publisher.guard is application.guard
    assert application.campaign_release.publisher is application.publisher
    assert application.campaign_release.guard is application.guard


def test_the_follow_up_runs_after_every_release_rollback_and_repair(application: Application) -> None:
    assert application.publisher.after is application.after_release
    assert application.rollback.after is application.after_release
    assert application.reconcile.after == application.after_release.repairing()
    assert application.doctor.data_releases is application.data_releases


def test_roles_reach_the_approvers(application: Application) -> None:
    assert application.approving.roles == {"lead": ("anna",)}


def test_the_identity_of_a_user_does_not_come_from_a_variable_that_they_can_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = SystemUser().name()
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, f"not {own}")
    assert SystemUser().name() == own
