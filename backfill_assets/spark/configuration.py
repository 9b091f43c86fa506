"""What the Spark server is started with, and the Java that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from backfill_assets.campaign.execution import PINNED
from backfill_assets.core.errors import EngineError, JavaError
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import EngineFolder
from backfill_assets.storage.files import write_private

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The Delta JAR that belongs to the pinned pyspark and delta-spark; change all three together."""
DELTA_JAR: Final = f"{DELTA_PACKAGE.replace(':', '_', 1).replace(':', '-', 1)}.jar"
"""Its file among the JARs that Spark has downloaded."""

_TOKEN_KEY: Final = "spark.connect.authenticate.token"  # noqa: S105  # a setting's name
_SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"

TABLES_KEPT: Final = 150
"""Delta keeps so many of the tables that it met, in memory."""
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# Told to the client, who asked for it.
logger.answers.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.answers.level = off
# Delta tables are not Hive tables; the metastore complains of that at each of them.
logger.metastore.name = org.apache.hadoop.hive
logger.metastore.level = fatal
logger.catalog.name = org.apache.spark.sql.hive.HiveExternalCatalog
logger.catalog.level = error
"""


def server_configuration(settings: Settings, folder: EngineFolder, port: int) -> dict[str, str]:
    """Give Spark's settings for the embedded server on `port`, without the token."""
    return {
        "spark.master": "local[*]",
        "spark.app.name": "backfill_assets",
        "spark.driver.memory": settings.spark_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Whoever is on this machine may reach the ports of the driver; without the secret that Spark draws, nobody is heard.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.local.dir": str(folder.scratch),
        "spark.ui.enabled": "false",
        # What its pages would show is kept all the same, by default of a thousand queries each with its plan.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "100",
        "spark.scheduler.mode": "FAIR",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(settings.warehouse),
        # Relative to the server's working folder, because Derby's URL cannot quote a path.
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=metastore;create=true",
        # For clients of their own as well, such as somebody's notebook.
        **PINNED,
        # Spark's and Delta's defaults are for clusters: with them a tiny write takes twenty seconds.
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Delta keeps every table that it touched for an hour, with plans and sessions: 3 MB for each shadow. Not much
        # smaller: a table must not fall out under a transaction, its lock would go with it.
        "spark.databricks.delta.delta.log.cacheSize": str(TABLES_KEPT),
    }


def write_configuration(folder: EngineFolder, configuration: Mapping[str, str], token: str) -> None:
    """Write the files that `server_command` points at; only its user may read the one with the token."""
    lines = [f"{key} {_escaped(value)}" for key, value in {**configuration, _TOKEN_KEY: token}.items()]
    write_private(folder.properties, "\n".join(lines) + "\n")
    folder.configuration.mkdir(exist_ok=True)
    (folder.configuration / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")


def server_command(folder: EngineFolder) -> list[str]:
    """Give the command line of the server, which anybody on the machine can read."""
    submit = str(_spark_home() / "bin" / "spark-submit")
    return [submit, "--properties-file", str(folder.properties), "--class", _SERVER_CLASS, "spark-internal"]


def server_environment(environ: Mapping[str, str], folder: EngineFolder) -> dict[str, str]:
    """Give the server's variables: `environ` without what is meant for clients or for another Spark."""
    kept = {key: value for key, value in environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    ours = {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_CONF_DIR": str(folder.configuration),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return kept | ours


def _spark_home() -> Path:
    spec = find_spec("pyspark")  # importing it takes a second
    if spec is None or spec.origin is None:
        raise EngineError("The package pyspark is not installed; install backfill-assets with its dependencies.")
    return Path(spec.origin).parent


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


LOWEST_JAVA: Final = 17
"""The oldest Java on which Spark 4 runs."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_REMEDY: Final = f"Install Java {LOWEST_JAVA} or newer, or set JAVA_HOME to the folder of one."


def require_java(environ: Mapping[str, str]) -> Path:
    """Give the `java` of `JAVA_HOME`, else of `PATH`; raises `JavaError` if it is missing or too old."""
    java = _find(environ)
    output = _version_output(java)
    match = _VERSION.search(output)
    if match is None:
        raise JavaError(f"{java} -version does not tell a Java version but {output.strip()[:200]!r}. {_REMEDY}")
    if int(match[1]) < LOWEST_JAVA:
        raise JavaError(f"{java} is Java {match[1]}, Spark needs {LOWEST_JAVA} or newer. {_REMEDY}")
    return java


def _find(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, but there is no program {java}. {_REMEDY}")
        return java
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaError(f"Java was not found: JAVA_HOME is not set and PATH has no java. {_REMEDY}")
    return Path(found)


def _version_output(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} -version failed: {error}. {_REMEDY}") from error
    return done.stderr + done.stdout
