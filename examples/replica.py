"""A table copied into another database, change by change, each once and in order.

    python replica.py postgresql://.../shop postgresql://.../reports

Triggers publish each row of `account` that changes (trunq.capture). A mover takes the changes into the other
database, split by key into three queues. Three members read one each and apply what they read: changes of
one account come in their order, those of different accounts side by side. Kill it at any time and start it
again: it goes on where it stood, and ends when both tables are equal.
"""

import asyncio
import random
import sys

from trunq import AsyncClient, Consumer, Mover

SOURCE, TARGET = sys.argv[1:3]
TRANSFERS = int(sys.argv[3]) if len(sys.argv) > 3 else 100
MEMBERS = range(3)


async def prepare(source, target):
    async with source.transaction() as connection:
        await connection.execute("create table if not exists account (id int primary key, balance int)")
    await source.create_queue("changes", default_subscription=False)
    await source.subscribe("changes", "replica", mode="exclusive", max_attempts=0)
    await source.capture("account", "changes")
    async with source.transaction() as connection:
        await connection.execute(
            "insert into account select n, 100 from generate_series(1, 20) n on conflict do nothing"
        )
    async with target.transaction() as connection:
        await connection.execute("create table if not exists account (id int primary key, balance int)")
        await connection.execute("create table if not exists applied (change bigint primary key, member int)")
    for member in MEMBERS:
        await target.create_queue(f"changes_{member}", default_subscription=False)
        await target.subscribe(f"changes_{member}", "copy", mode="exclusive")


def member_of(number):
    async def apply(batch, connection):
        async for message in batch:
            # What this writes and the position of the member commit together. A change that came twice
            # would break the primary key.
            change = message.headers["trunq_source_id"]
            await connection.execute("insert into applied values (%s, %s)", (change, number))
            row = message.payload["after"]
            if row is None:
                await connection.execute("delete from account where id = %s", (int(message.key),))
            else:
                await connection.execute(
                    "insert into account values (%s, %s)"
                    " on conflict (id) do update set balance = excluded.balance",
                    (row["id"], row["balance"]),
                )

    return Consumer(f"changes_{number}", "copy", apply, database=TARGET, worker=f"member-{number}")


async def transfer(source):
    for _ in range(TRANSFERS):
        giver, taker = sorted(random.sample(range(1, 21), 2))
        async with source.transaction() as connection:
            await connection.execute(
                "update account set balance = balance + case id when %s then -1 else 1 end"
                " where id in (%s, %s)",
                (giver, giver, taker),
            )


async def rows(client, query):
    async with client.transaction() as connection:
        return await (await connection.execute(query)).fetchall()


async def main():
    async with AsyncClient(SOURCE) as source, AsyncClient(TARGET) as target:
        await prepare(source, target)
        mover = Mover(
            *("changes", "changes_{slot}"),
            split="key",
            into=len(MEMBERS),
            database=SOURCE,
            target=TARGET,
            name="replica",
            worker="mover-1",
        )
        members = [member_of(number) for number in MEMBERS]
        async with asyncio.TaskGroup() as running:
            for each in (mover, *members):
                running.create_task(each.run_async())
            await transfer(source)
            ((published,),) = await rows(source, "select count(*) from trunq_log.changes")
            while await rows(target, "select count(*) from applied") != [(published,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            for each in (mover, *members):
                each.stop()
        accounts = "select id, balance from account order by id"
        is_equal = await rows(source, accounts) == await rows(target, accounts)
        print(
            f"{published} changes, each applied once; the tables are {'equal' if is_equal else 'different'}"
        )


asyncio.run(main())
