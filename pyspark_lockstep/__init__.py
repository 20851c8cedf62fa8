"""Lets Spark find the data source `lockstep` by itself: it looks for packages named `pyspark_*`."""

from lockstep.spark.source import LockstepSource as DefaultSource

__all__ = ["DefaultSource"]
