"""Local Spark sessions set up for this project: quiet, on loopback, with short start-up.

Invariant: a session made here can push filters down (Spark refuses a reader that offers it unless a
setting allows it) and its Python workers run this interpreter.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockstep.spark.java import cache_directory, prepare_environment, written_whole
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Only the quick compiler and the serial collector: short jobs start in half the time. A benchmark
#: passes `spark_driver_extraJavaOptions=""` to run what a long-lived session would.
QUICK_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
#: Read by the launcher script before any Java runs; keeps its banner and warnings off the terminal.
_LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def local_session(app: str, cores: int = 2, *, cache: Path | None = None, **conf: str) -> SparkSession:
    """A session `local[cores]`; `conf` adds or replaces settings, with `_` for the dots of their names.

    There is one session a process: when one runs already, it is returned and `conf` applies to what can
    still change. Raises ConfigurationError when there is no Java or no pyspark.
    """
    prepare_environment(os.environ, cache)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "PySpark is not installed", hint="pip install 'lockstep-db[spark]'"
        ) from error
    settings = {**_SETTINGS, **{name.replace("_", "."): value for name, value in conf.items()}}
    log_file = written_whole((cache or cache_directory(os.environ)) / "spark-log.properties", _LOG_SETTINGS)
    options = settings["spark.driver.extraJavaOptions"]
    settings["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile={log_file}".strip()
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
