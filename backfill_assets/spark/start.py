"""Start the embedded server: Java, configuration and a detached process, until it takes sessions."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

import backfill_assets
from backfill_assets.campaign.execution import PINNED
from backfill_assets.core.errors import EngineError, JavaError, PortTakenError, ServerStartError
from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.registration import EngineFolder, ProcessRef, Registration
from backfill_assets.storage.disk import write_private

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The Delta JAR that matches the pinned pyspark and delta-spark; change all three together."""
S3_PACKAGES: Final = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:s3:2.35.4",
    "software.amazon.awssdk:s3-transfer-manager:2.35.4",
)
"""What Spark needs for a bucket, for the Hadoop of the pinned pyspark; 18 MB without the SDK's bundle of 670 MB."""
_S3_BUNDLE: Final = "software.amazon.awssdk:bundle"

_TOKEN_KEY: Final = "spark.connect.authenticate.token"  # noqa: S105  # a setting's name
_SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"

TABLES_KEPT: Final = 150
"""The number of tables that Delta keeps in memory."""
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# Reported to the client that asked for it.
logger.answers.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.answers.level = off
# Delta tables are not Hive tables; the metastore warns about each of them.
logger.metastore.name = org.apache.hadoop.hive
logger.metastore.level = fatal
logger.catalog.name = org.apache.spark.sql.hive.HiveExternalCatalog
logger.catalog.level = error
"""


def server_configuration(settings: Settings, folder: EngineFolder, port: int) -> dict[str, str]:
    """Spark's settings for the embedded server on `port`, without the token."""
    return {
        "spark.master": "local[*]",
        "spark.app.name": "backfill_assets",
        "spark.driver.memory": settings.spark_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Every user of this machine can reach the driver's ports; Spark only accepts calls with its generated secret.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.jars.packages": ",".join(packages_of(settings)),
        "spark.local.dir": str(folder.scratch),
        "spark.ui.enabled": "false",
        # Spark keeps the content of the UI's pages anyway, by default of a thousand queries with their plans.
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
        "spark.sql.warehouse.dir": str(folder.tables),
        # Relative to the server's working folder, because Derby's URL cannot quote a path.
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=metastore;create=true",
        # For other clients as well, such as a notebook.
        **PINNED,
        # Spark's and Delta's defaults are for clusters: with these a tiny write takes twenty seconds.
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Delta keeps every used table for an hour, with plans and sessions: 3 MB for each shadow. Not much smaller: a table
        # that is evicted during a transaction would lose its lock.
        "spark.databricks.delta.delta.log.cacheSize": str(TABLES_KEPT),
        **store_configuration(settings, folder),
    }


_S3A: Final = "spark.hadoop.fs.s3a"
WHERE_A_STORE_IS: Final = frozenset({f"{_S3A}.endpoint", f"{_S3A}.endpoint.region"})
"""Settings that say which store a server works on."""


def packages_of(settings: Settings) -> tuple[str, ...]:
    """The packages that the embedded server needs, as Maven names them."""
    return (DELTA_PACKAGE, *(S3_PACKAGES if settings.store_options else ()))


def store_configuration(settings: Settings, folder: EngineFolder) -> dict[str, str]:
    """Spark's settings for a bucket; keys are not among them: the server reads them from its environment."""
    options = settings.store_options
    if not options:
        return {}
    s3a = {"buffer.dir": str(folder.scratch), "endpoint.region": options["AWS_REGION"]}
    if address := options.get("AWS_ENDPOINT_URL"):
        encrypted = str(address.startswith("https://")).lower()
        # Stores besides AWS rarely have a host name for each bucket.
        s3a |= {"endpoint": address, "path.style.access": "true", "connection.ssl.enabled": encrypted}
    return {"spark.jars.excludes": _S3_BUNDLE} | {f"{_S3A}.{name}": value for name, value in s3a.items()}


def write_configuration(folder: EngineFolder, configuration: Mapping[str, str], token: str) -> None:
    """Write the files for `server_command`; only its user may read the one with the token."""
    lines = [f"{key} {_escaped(value)}" for key, value in {**configuration, _TOKEN_KEY: token}.items()]
    write_private(folder.properties, "\n".join(lines) + "\n")
    folder.configuration.mkdir(exist_ok=True)
    (folder.configuration / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")


def server_command(folder: EngineFolder) -> list[str]:
    """The command line of the server; every user of the machine can read it."""
    submit = str(_spark_home() / "bin" / "spark-submit")
    return [submit, "--properties-file", str(folder.properties), "--class", _SERVER_CLASS, "spark-internal"]


def server_environment(environ: Mapping[str, str], folder: EngineFolder) -> dict[str, str]:
    """The server's environment: `environ` without the variables for clients or another Spark."""
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
"""The oldest Java version for Spark 4."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_REMEDY: Final = f"Install Java {LOWEST_JAVA} or newer, or set JAVA_HOME to its folder."


def require_java(environ: Mapping[str, str]) -> Path:
    """The `java` of `JAVA_HOME`, otherwise of `PATH`; raises `JavaError` if it is missing or too old."""
    java = _find(environ)
    output = _version_output(java)
    match = _VERSION.search(output)
    if match is None:
        raise JavaError(f"{java} -version shows no Java version, but {output.strip()[:200]!r}. {_REMEDY}")
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


START_SECONDS: Final = 600
"""How long a start may take; the first one on a machine downloads Delta's JARs."""

_POLL_SECONDS: Final = 0.3
_LOG_LINES: Final = 15
_RELEVANT: Final = ("ERROR", "Exception", "Error:", "UNRESOLVED", "not found", "Caused by", "FATAL")

# The shell ends immediately, so the program is no child of this process and cannot become its zombie.
_DETACH: Final = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


@contextmanager
def downloads_alone(packages: Iterable[str], cache: Path | None = None) -> Iterator[None]:
    """Start only one server at a time while Spark's `cache` lacks one of the packages: two concurrent downloads break each other.

    Raises:
        ServerStartError: another start by this user holds the lock longer than a start may take.
    """
    folder = cache or _home() / ".ivy2.5.2"
    if all((folder / "jars" / jar_of(package)).is_file() for package in packages):
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "backfill_assets.lock", timeout=START_SECONDS)
    try:
        held = lock.acquire()
    except Timeout as timeout:
        raise ServerStartError(
            f"Another process has been starting a Spark server for {START_SECONDS} s and holds {lock.lock_file}, because only one "
            "may download Spark's JARs; wait for it, or end it, and try again."
        ) from timeout
    with held:
        yield


def jar_of(package: str) -> str:
    """The file name of a package among the JARs that Spark downloads."""
    return f"{package.replace(':', '_', 1).replace(':', '-', 1)}.jar"


def _home() -> Path:
    """The home folder as Java knows it: the user's, even if HOME has another value."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def start_server(settings: Settings, folder: EngineFolder) -> Registration:
    """Start a server and register it; it is ready when `wait_until_ready` returns.

    The caller holds the folder's lock. Raises `JavaError`, `PortTakenError` or `ServerStartError`.
    """
    require_java(os.environ)
    port = _port(settings.spark_port)
    token = secrets.token_urlsafe(32)
    configuration = server_configuration(settings, folder, port)
    shutil.rmtree(folder.scratch, ignore_errors=True)  # left by a server that was killed
    folder.scratch.mkdir()
    if folder.log.exists():
        folder.log.replace(folder.log.with_suffix(".log.1"))
    write_private(folder.log, "")
    write_configuration(folder, configuration, token)
    folder.touch()
    server = _detached(server_command(folder), server_environment(os.environ, folder), folder)
    registration = Registration(
        host=socket.gethostname(),
        server=server,
        watcher=None,
        port=port,
        token=token,
        configuration=configuration,
    )
    # Before it is ready: if this process is killed now, the next one must find the server and not start a second.
    folder.write(registration)
    return registration


def start_watcher(settings: Settings, folder: EngineFolder, registration: Registration) -> Registration:
    """Start the process that stops the server after it has been idle for `settings.spark_idle`."""
    root = str(Path(backfill_assets.__file__).resolve().parents[1])
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    idle = str(settings.spark_idle.total_seconds())
    command = [
        sys.executable,
        "-m",
        "backfill_assets.spark.watcher",
        str(folder.root),
        idle,
    ]
    watched = registration.model_copy(update={"watcher": _detached(command, environ, folder)})
    folder.write(watched)
    return watched


def wait_until_ready(folder: EngineFolder, registration: Registration) -> None:
    """Return when the server takes an authenticated session.

    Raises `ServerStartError` with the relevant lines of the log, or `PortTakenError`.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        match ask(registration.endpoint):
            case Answer.READY:
                return
            case Answer.REFUSED:
                raise _port_taken(registration.port)
            case Answer.SILENT if registration.server.find() is None:
                raise _start_error(folder, registration, "ended while it started")
            case Answer.SILENT:
                time.sleep(_POLL_SECONDS)
    raise _start_error(folder, registration, f"was not ready after {START_SECONDS} s")


def _detached(command: Sequence[str], environ: Mapping[str, str], folder: EngineFolder) -> ProcessRef:
    shell = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(folder.log), *command],
        cwd=folder.root,
        env=environ,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    try:
        return ProcessRef.of(int(shell.stdout))
    except psutil.NoSuchProcess:
        raise ServerStartError(f"{command[0]} ended immediately. {_log_of(folder)}") from None


def _port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise _port_taken(wanted) from error
        return int(probe.getsockname()[1])


def _port_taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"Port {port} of 127.0.0.1 is taken by another program. Set BACKFILL_ASSETS_SPARK_PORT to "
        "another port, or to 0 for a free one."
    )


def _start_error(folder: EngineFolder, registration: Registration, what: str) -> Exception:
    logged = _log_of(folder)
    if "BindException" in logged or "Address already in use" in logged:
        return _port_taken(registration.port)
    return ServerStartError(f"The Spark server {what}. {logged}")


def _log_of(folder: EngineFolder) -> str:
    lines = folder.log.read_text(encoding="utf-8", errors="replace").splitlines() if folder.log.exists() else []
    relevant = [line for line in lines if any(word in line for word in _RELEVANT)] or lines
    return f"Its log {folder.log} says:\n" + "\n".join(line[:300] for line in relevant[-_LOG_LINES:])
