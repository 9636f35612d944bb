import os

import psycopg

import trunq

client = trunq.Client()  # the database of TRUNQ_DSN
worker = trunq.Worker("orders")


def place_order(connection, customer, total):
    with connection.transaction():  # the order and its message: both, or neither
        order = connection.execute(
            "insert into orders (customer, total) values (%s, %s) returning id", (customer, total)
        ).fetchone()
        client.publish("orders", {"order": order[0]}, kind="placed", connection=connection)


@worker.handler("placed")
async def send_invoice(message, connection):  # the invoice and the answer: both, or neither
    await connection.execute("insert into invoice (order_id) values (%s)", (message.payload["order"],))


if __name__ == "__main__":
    with psycopg.connect(os.environ["TRUNQ_DSN"]) as connection:
        connection.execute("create table orders (id serial primary key, customer text, total int)")
        connection.execute("create table invoice (order_id int primary key references orders)")
        place_order(connection, "Ada", 42)
