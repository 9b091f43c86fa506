"""Every error that users can see; all derive from `BackfillError`, and each message names value, place and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


class BackfillError(Exception):
    """Raised when backfill_assets refuses or fails; the root of all its errors."""


class InvalidNameError(BackfillError):
    """Raised when a name that reaches paths or SQL is not a safe identifier."""


class InvalidDayError(BackfillError):
    """Raised when a day is not an ISO date or lies outside the dataset's range."""


class DatasetError(BackfillError):
    """Raised when a dataset folder cannot be used; names file, key, value and remedy."""


class MisfitError(BackfillError, ValueError):
    """Raised when parts of a YAML file contradict each other; a ValueError, so that pydantic reports it.

    `problems` are pairs of the key's path and what is wrong with it.
    """

    def __init__(self, problems: Sequence[tuple[tuple[str, ...], str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(text for _, text in problems))


class ModelError(BackfillError):
    """Raised when a staging or fact model fails or yields columns other than those declared."""


class SourceError(BackfillError):
    """Raised when source files cannot be read as the dataset declares them."""


class ContractError(BackfillError):
    """Raised when an expected-change contract cannot be understood."""


class UnitError(BackfillError):
    """Raised when a release unit does not exist or is not in the state that a command needs."""


class TakenBackError(UnitError):
    """Raised when another process has taken back a publication, or given up its unit, while this one stood still."""


class ClaimedDaysError(BackfillError):
    """Raised when days are claimed by another open unit."""


class HeldDaysError(BackfillError):
    """Raised when a live run asks for days that are on hold after a rollback."""


class EvidenceError(BackfillError):
    """Raised when a release is refused because evidence is missing, failed or stale."""


class PreconditionError(BackfillError):
    """Raised when a commit is refused because the table is not what the release was planned against."""


class BackupError(BackfillError):
    """Raised when a backup cannot be made, is damaged, or cannot be restored where it is asked to."""


class ProofError(BackfillError):
    """Raised when nothing of a request can be recomputed, or its inputs changed meanwhile; says what to do."""


class RollbackError(BackfillError):
    """Raised when a release cannot be rolled back."""


class LeaseLostError(BackfillError):
    """Raised when a worker no longer holds the lease of its attempt."""


class LedgerError(BackfillError):
    """Raised when the ledger cannot be opened or migrated, or is used from a second host."""


class LockHeldError(LedgerError):
    """Raised when a lock is not free within the time that its taker waits."""


class TableMovedError(PreconditionError):
    """Raised when the table has a newer commit than the version that a release was planned on."""


class ArgumentError(BackfillError):
    """Raised when a command is given a value that cannot be used."""


class SettingsError(BackfillError):
    """Raised when an environment variable holds a value that cannot be used."""


class EngineError(BackfillError):
    """Raised when Spark cannot be reached or used; the root of the engine's errors."""


class JavaError(EngineError):
    """Raised when no Java of at least the version that Spark needs is found."""


class PortTakenError(EngineError):
    """Raised when another program listens on the port of the embedded server."""


class ForeignServerError(EngineError):
    """Raised when the server of a folder is registered by another host or belongs to another user."""


class ServerStartError(EngineError):
    """Raised when the embedded server ends or does not answer while it starts."""


class ServerLostError(EngineError):
    """Raised when the server stops, forgets a session, or loses its workers while the session is in use."""


class SessionTakenOverError(EngineError):
    """Raised when a newer attempt with the same tag has ended this one's session."""


class QueryTimeoutError(EngineError):
    """Raised when one Spark operation ran longer than the query timeout and was interrupted."""


PASSING: Final = (QueryTimeoutError, ServerLostError, ServerStartError, ForeignServerError)
"""What may be over after a pause. What a person has to correct, such as a missing Java, stops a campaign at once."""


class LayoutError(BackfillError):
    """Raised when a path leads out of the folder that it must lie in."""


class StorageError(BackfillError):
    """Raised when a file cannot be written or kept: the disk is full or broken, or the folder belongs to another user."""


class NoBucketError(StorageError):
    """Raised when a bucket is not in its store."""


class ReadBackError(BackfillError):
    """Raised when a table read back after a release is not what the release said."""


class TimeTravelError(BackfillError):
    """Raised when a release's version of a table cannot be read: another dataset's, never committed, or gone."""


class SpecificationError(BackfillError):
    """Raised when a backfill specification cannot be used; names every problem with its line."""


class CampaignError(BackfillError):
    """Raised when a campaign does not exist, or is in the wrong phase for an action; says who brought it there."""


class ApprovalError(BackfillError):
    """Raised when an approval or a publication comes from the wrong user, for the wrong evidence, or at the wrong time."""


class NoticeError(BackfillError):
    """Raised when a notice could not be delivered; says why, but never the webhook's URL, which is a secret."""
