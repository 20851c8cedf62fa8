"""Three real nodes, shared by all tests; whatever a test breaks is mended after it."""

import datetime

import pytest
from cassandra import Unavailable
from cassandra.cluster import NoHostAvailable
from orders import Orders, create_tables


def test_the_newest_order_comes_first(orders):
    new_year = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    first = orders.place("ada", 1200, new_year)
    second = orders.place("ada", 800, new_year + datetime.timedelta(days=1))
    assert orders.latest("ada") == [(second, 800), (first, 1200)]


def test_orders_survive_the_loss_of_a_node(orders, lockstep_cluster):
    before = orders.place("ada", 100)
    lockstep_cluster.nodes[1].kill()
    after = orders.place("ada", 200)
    assert {order for order, _ in orders.latest("ada")} == {before, after}


def test_without_a_quorum_orders_are_refused(orders, lockstep_cluster):
    lockstep_cluster.node("n2").kill()
    lockstep_cluster.node("n3").kill()
    lockstep_cluster.settle()
    with pytest.raises((Unavailable, NoHostAvailable)):
        orders.place("ada", 100)


def test_a_node_joins_and_leaves_under_the_application(lockstep_cluster_factory):
    with lockstep_cluster_factory(nodes=3) as cluster:
        session = cluster.connect(cluster.create_keyspace("shop"))
        try:
            create_tables(session.execute)
            shop = Orders(session)
            placed = shop.place("ada", 100)
            cluster.add()
            cluster.node("n1").decommission()
            assert shop.latest("ada") == [(placed, 100)]
        finally:
            session.cluster.shutdown()
