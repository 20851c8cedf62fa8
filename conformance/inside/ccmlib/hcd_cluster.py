"""Imported by the suite, never used: such clusters are not run."""

from ccmlib.cluster import Cluster


class HcdCluster(Cluster):
    pass
