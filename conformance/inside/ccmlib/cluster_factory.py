"""Finds the cluster that already runs."""

from ccmlib.cluster import Cluster


class ClusterFactory:
    @staticmethod
    def load(path, name):
        return Cluster(path, name)
