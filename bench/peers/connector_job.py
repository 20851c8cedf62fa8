"""Reads and writes a table by the Spark Cassandra Connector, which knows nothing of the database behind it.

Run by an interpreter of its own with PySpark 3.5, which that connector needs. Prints one line of JSON:
seconds of each round. Usage: connector_job.py HOSTS PORT ROWS ROUNDS PACKAGE
"""

import json
import sys
import time

from pyspark.sql import SparkSession

hosts, port, rows, rounds, package = sys.argv[1:6]
session = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.memory", "2g")
    .config("spark.jars.packages", package)
    .config("spark.cassandra.connection.host", hosts)
    .config("spark.cassandra.connection.port", port)
    .config("spark.cassandra.output.consistency.level", "LOCAL_QUORUM")
    .getOrCreate()
)
session.sparkContext.setLogLevel("ERROR")


def table(name):
    return {"keyspace": "bench", "table": name}


def read(level):
    frame = (
        session.read.format("org.apache.spark.sql.cassandra")
        .options(**table("rows"), **{"spark.cassandra.input.consistency.level": level})
        .load()
    )
    frame.write.format("noop").mode("overwrite").save()


def write():
    frame = session.range(0, int(rows), 1, 2).selectExpr(
        "CAST(id DIV 100 AS INT) AS id",
        "CAST(id % 100 AS INT) AS at",
        "format_string('row number %09d', id) AS what",
        "id / 4D AS price",
        "id AS number",
    )
    frame.write.format("org.apache.spark.sql.cassandra").options(**table("written")).mode("append").save()


found = {}
for name, run in (
    ("read, ONE", lambda: read("ONE")),
    ("read, LOCAL_QUORUM", lambda: read("LOCAL_QUORUM")),
    ("write", write),
):
    found[name] = []
    for _ in range(int(rounds)):
        began = time.perf_counter()
        run()
        found[name].append(time.perf_counter() - began)
print(json.dumps(found), flush=True)
session.stop()
