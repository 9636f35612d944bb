import trunq

client = trunq.Client()
client.subscribe("orders", "ledger", mode="exclusive", start="earliest")
with client.transaction() as connection:
    connection.execute("create table if not exists ledger (message bigint primary key, order_id bigint)")

for batch in client.stream("orders", "ledger", worker="ledger-1"):  # waits for what comes
    with batch.transaction() as connection:  # the batch's effects and its end: both, or neither
        for message in batch:
            order = (message.id, message.payload["order"])
            connection.execute("insert into ledger values (%s, %s)", order)
