"""Simulated nodes: no process, no waiting, and the clock is the test's."""

from orders import create_tables


def test_a_basket_is_forgotten_after_an_hour(lockstep_simulation):
    cluster = lockstep_simulation(nodes=3, seed=7)
    cluster.execute(
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    create_tables(lambda text: cluster.execute(text.replace("EXISTS ", "EXISTS shop.")))
    cluster.execute("INSERT INTO shop.baskets (customer, things) VALUES (?, ?)", ("ada", {"a lamp"}))
    cluster.advance(3500)
    assert cluster.execute("SELECT things FROM shop.baskets") == [({"a lamp"},)]
    cluster.kill("n2")
    cluster.advance(200)
    assert cluster.execute("SELECT things FROM shop.baskets") == []
