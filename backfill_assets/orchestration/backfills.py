"""Launch and follow native Dagster partition backfills through Dagster's supported door, GraphQL."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES

from backfill_assets.core.errors import BackfillError
from backfill_assets.orchestration.names import LAYERS

OVER = frozenset(status.value for status in BULK_ACTION_TERMINAL_STATUSES)
"""States of a backfill, in Dagster's words, from which it does not move any more."""

_LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on UnauthorizedError { message }
    ... on PartitionKeysNotFoundError { message }
    ... on InvalidSubsetError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""


# What `dagster-graphql` does, with the variables from a file: ten thousand days are more than a command line may hold.
_ASK = """
import sys
from pathlib import Path
from dagster_graphql.cli import cli
cli([*sys.argv[2:], "--variables", Path(sys.argv[1]).read_text(encoding="utf-8")], obj={})
"""


class LaunchError(BackfillError):
    """Raised when Dagster does not take a backfill."""


@dataclass(frozen=True)
class Backfill:
    """A native backfill to be launched: layers of one dataset over some partitions, with layers of others if need be."""

    dataset: str
    partitions: tuple[str, ...]
    layers: Sequence[str] = LAYERS
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    title: str = ""
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    run_config: Mapping[str, Any] = field(default_factory=dict)

    def params(self) -> dict[str, Any]:
        """The same as GraphQL's `LaunchBackfillParams`."""
        return {
            "assetSelection": [
                {"path": [layer, name]}
                for name, layers in {self.dataset: self.layers, **self.others}.items()
                for layer in layers
            ],
            "partitionNames": list(self.partitions),
            "title": self.title or None,
            "description": self.description or None,
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
            "runConfigData": dict(self.run_config),
            "fromFailure": False,
        }


def launch_backfill(backfill: Backfill, webserver: str | None = None) -> str:
    """Launch a backfill and return its Dagster id; the Dagster daemon runs it.

    Without a webserver's URL the instance of DAGSTER_HOME and the workspace of the working folder are used.

    Raises:
        LaunchError: Dagster refused it or could not be asked; the message is Dagster's.
    """
    answer = graphql(_LAUNCH, {"params": backfill.params()}, webserver)["launchPartitionBackfill"]
    if answer["__typename"] != "LaunchBackfillSuccess":
        reason = (
            answer.get("message") or "; ".join(e["message"] for e in answer.get("errors", ())) or answer["__typename"]
        )
        raise LaunchError(f"Dagster did not take the backfill of {backfill.dataset}: {reason}")
    return str(answer["backfillId"])


def graphql(query: str, variables: Mapping[str, Any], webserver: str | None = None) -> dict[str, Any]:
    """Ask Dagster's GraphQL, of a webserver or of the instance itself, and return the data of its answer.

    Raises:
        LaunchError: the question could not be answered.
    """
    answer = _ask_webserver(webserver, query, variables) if webserver else _ask_instance(query, variables)
    if answer.get("errors"):
        raise LaunchError(f"Dagster could not answer: {answer['errors'][0].get('message', answer['errors'][0])}")
    data = answer.get("data")
    if not isinstance(data, dict):
        raise LaunchError("what answered is no Dagster webserver; see that --webserver names one")
    return data


def _ask_webserver(webserver: str, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    url = webserver.rstrip("/") + "/graphql"
    try:
        response = requests.post(url, json={"query": query, "variables": variables}, timeout=60)
        answer = response.json()
    except (requests.RequestException, ValueError) as error:
        # A user and a password may stand in the URL, and the library's text quotes it.
        secret = "@" in webserver
        where, why = (
            ("the URL named (not shown: it may hold a password)", type(error).__name__)
            if secret
            else (webserver, error)
        )
        raise LaunchError(f"no Dagster webserver answers at {where} ({why}); start it with: make dev") from None
    return answer if isinstance(answer, dict) else {}


def _ask_instance(query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        document, given, out = (Path(folder, name) for name in ("query.graphql", "variables.json", "answer.json"))
        document.write_text(query, encoding="utf-8")
        given.write_text(json.dumps(variables), encoding="utf-8")
        command = [
            sys.executable, "-P", "-c", _ASK, str(given), "--file", str(document), "--output", str(out), *_workspace()
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # our own arguments
        if done.returncode or not out.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
            raise LaunchError(
                f"Dagster could not be asked ({last[0]}); run this in the project's folder, with DAGSTER_HOME set"
            )
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answer


def _workspace() -> list[str]:
    # Dagster finds a workspace in the working folder by itself; elsewhere ours is the one that is meant.
    if Path("workspace.yaml").exists() or Path("pyproject.toml").exists():
        return []
    return ["--module-name", "backfill_assets.definitions"]
