import time

import trunq

AHEAD = 2  # for each free slot, so many messages wait in the work queue, at most
PENDING = """
    insert into pending values (%s, %s, %s, %s)
    on conflict (id) do update set lease_id = excluded.lease_id, token = excluded.token
"""
FORWARD = """
    with chosen as materialized (
      select p.* from pending p left join tenant t using (tenant)
      order by coalesce(t.need, 0) desc, p.id limit %s),
    gone as (delete from pending where id in (select id from chosen))
    select trunq.forward('inbox', 'default', lease_id, token, array[id], 'work') from chosen
"""


def schedule(client: trunq.Client) -> int:
    """Take over what arrived or is to be tried again, and forward what comes next. Returns how many."""
    with client.transaction() as connection:  # the whole round, or nothing
        client.forward_retries("work", "default", "inbox", connection=connection)
        # Another scheduler waits here for the end of the round.
        arrived = client.lease("inbox", "default", "scheduler", 1000, "30 days", connection=connection)
        pending = [(message.id, message.key, message.lease_id, message.token) for message in arrived]
        connection.cursor().executemany(PENDING, pending)
        # In this order: what a worker leases between the two counts against us twice, and never for us.
        (work,) = client.status("work", connection=connection)
        room = AHEAD * client.fleet("work", connection=connection).free_slots - work.ready
        return connection.execute(FORWARD, (max(0, room),)).rowcount


if __name__ == "__main__":
    with trunq.Client() as client:
        while True:
            if not schedule(client):
                time.sleep(0.1)
