"""Orders of a shop: the newest first for each customer, and what is in a customer's basket for an hour."""

import datetime
import uuid

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    customer text, placed timestamp, id uuid, cents int, PRIMARY KEY (customer, placed, id)
) WITH CLUSTERING ORDER BY (placed DESC, id ASC);
CREATE TABLE IF NOT EXISTS baskets (customer text PRIMARY KEY, things set<text>)
    WITH default_time_to_live = 3600;
"""


def create_tables(execute):
    for statement in filter(None, map(str.strip, TABLES.split(";"))):
        execute(statement)


class Orders:
    """`session` is a driver's session, connected to a keyspace that has the tables."""

    def __init__(self, session):
        self.session = session
        self.insert = session.prepare("INSERT INTO orders (customer, placed, id, cents) VALUES (?, ?, ?, ?)")
        # Writing the same order twice is harmless, so that the driver may try another node.
        self.insert.is_idempotent = True
        self.newest = session.prepare("SELECT id, cents FROM orders WHERE customer = ? LIMIT ?")
        self.newest.is_idempotent = True

    def place(self, customer, cents, placed=None):
        order = uuid.uuid4()
        self.session.execute(
            self.insert, (customer, placed or datetime.datetime.now(datetime.UTC), order, cents)
        )
        return order

    def latest(self, customer, count=10):
        return [(row.id, row.cents) for row in self.session.execute(self.newest, (customer, count))]
