"""Another process that asks the executor of a Spark server to stop: `python stop_executor.py PORT…`, with its internal ports."""

from __future__ import annotations

import sys
from typing import Any

from py4j.protocol import Py4JJavaError  # noqa: TID251  # a stranger has a JVM of their own
from pyspark.java_gateway import launch_gateway

_ENDPOINT = "LocalSchedulerBackendEndpoint"


def main() -> None:
    """Ask it on each port, and print the result."""
    gateway: Any = launch_gateway()
    jvm = gateway.jvm
    spark = jvm.org.apache.spark
    configuration = spark.SparkConf(False).set("spark.rpc.lookupTimeout", "10s")
    secret = getattr(getattr(spark.internal.config, "package$"), "MODULE$").AUTH_SECRET_FILE()
    security = spark.SecurityManager(configuration, jvm.scala.Option.empty(), secret)
    stranger = spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, configuration, security, True)
    anything = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
    for port in sys.argv[1:]:
        try:
            executor = stranger.setupEndpointRef(spark.rpc.RpcAddress("127.0.0.1", int(port)), _ENDPOINT)
        except Py4JJavaError as error:
            causes = [line for line in str(error).splitlines() if line.startswith("Caused by")]
            print(f"{port}: {causes[-1] if causes else error}")  # noqa: T201 - for the test
        else:
            # Spark sends the companion object of the message, and understands nothing else.
            executor.askSync(getattr(getattr(spark.scheduler.local, "StopExecutor$"), "MODULE$"), anything)
            print(f"{port}: told")  # noqa: T201 - for the test
    gateway.shutdown()


if __name__ == "__main__":
    main()
