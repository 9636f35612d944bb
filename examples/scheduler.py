import time

from psycopg.types.json import Jsonb

import trunq

AHEAD = 2  # for each free slot, so many messages wait in the work queue, at most
CHOOSE = """
    with chosen as materialized (
      select p.*, coalesce(t.need, 0) need from pending p left join tenant t using (tenant)
      order by 4 desc, p.id limit %s),
    gone as (delete from pending where id in (select id from chosen))
    select tenant, payload from chosen order by need desc, id
"""


def schedule(client: trunq.Client) -> int:
    """Take over what arrived, and publish what comes next. Returns how many messages it published."""
    batch = client.next_batch("inbox", "scheduler", worker="scheduler-1")
    with client.transaction() as connection:  # the whole round, or nothing
        connection.execute("lock table pending in share row exclusive mode")  # one round at a time
        if batch is not None:
            with connection.cursor() as cursor:
                cursor.executemany(
                    "insert into pending values (%s, %s, %s)",
                    [(message.id, message.key, Jsonb(message.payload)) for message in client.read(batch)],
                )
            client.finish(batch, connection=connection)
        # In this order: what a worker leases between the two counts against us twice, and never for us.
        (work,) = client.status("work", connection=connection)
        room = AHEAD * client.fleet("work", connection=connection).free_slots - work.ready
        chosen = connection.execute(CHOOSE, (max(0, room),)).fetchall()
        if chosen:
            tenants, payloads = zip(*chosen, strict=True)
            client.publish_many("work", payloads, keys=tenants, connection=connection)
    return len(chosen)


if __name__ == "__main__":
    with trunq.Client() as client:
        while True:
            if not schedule(client):
                time.sleep(0.1)
