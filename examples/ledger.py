import time

import trunq

client = trunq.Client()
client.subscribe("orders", "ledger", mode="exclusive", start="earliest")
with client.transaction() as connection:
    connection.execute("create table if not exists ledger (message bigint primary key, order_id bigint)")

while True:
    batch = client.next_batch("orders", "ledger", worker="ledger-1")
    if batch is None:
        time.sleep(1)  # nothing new since the last tick
        continue
    with client.transaction() as connection:  # the batch's effects and its end: both, or neither
        for message in client.read(batch):
            order = (message.id, message.payload["order"])
            connection.execute("insert into ledger values (%s, %s)", order)
        client.finish(batch, connection=connection)
