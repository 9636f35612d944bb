"""`trunq db upgrade`: what it would do, and how far it is."""

from __future__ import annotations

import psycopg

from calling import OUTDATED
from shelling import Shell
from trunq import Client, install


def test_a_dry_run_says_what_it_would_do_and_lock_and_changes_nothing(
    trunq: Shell, client: Client, database: str
) -> None:
    for queue in ("mail", "orders"):
        client.create_queue(queue)
    assert "up to date" in trunq("db", "upgrade", "--dry-run").said
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(OUTDATED.encode())
        session.execute("drop trigger keep on trunq_log.mail")
    said = trunq("db", "upgrade", "--dry-run").said
    assert "Then 2 queues, each in a transaction of its own" in said
    assert "1 log gets a trigger; publishers wait for it, up to 200 ms at a time: mail" in said
    assert "Nothing was changed." in said
    assert trunq("db", "upgrade", "--dry-run", "--json").json == {
        "before": install.newest(),
        "after": install.newest(),
        "migrations": [],
        "tables": [],
        "functions": True,
        "queues": ["mail", "orders"],
        "logs": ["mail"],
        "yours": [],
        "repairs": [],
        "defects": [],
    }
    done = trunq("db", "upgrade").said
    assert "Queue mail is up to date, 1 left." in done
    assert "2 queues were brought up to date." in done
    assert "up to date" in trunq("db", "upgrade", "--dry-run").said


def test_a_dry_run_names_the_migrations_that_are_missing_and_what_they_change(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("delete from trunq.migration where number > 16")
        session.execute("create view public.mine as select dead_id from trunq.list_dead('mail')")
        session.execute(OUTDATED.encode())
    found = trunq("db", "upgrade", "--dry-run", "--json").json
    assert found["before"] == 16
    assert found["migrations"][0] == "0017_space"
    assert {"trunq.queue", "trunq.subscription"} <= set(found["tables"])
    said = trunq("db", "upgrade", "--dry-run").said
    assert "migration 0017_space" in said
    (yours,) = found["yours"]
    assert yours.startswith("view public.mine needs function trunq.list_dead(")
    assert "view public.mine needs function trunq.list_dead(" in said
    assert "trunq.queue: changed, locked for a moment" in said


def test_an_upgrade_that_was_stopped_is_finished_by_the_next(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("select trunq._outdate_queues('[]')")
    assert trunq("db", "upgrade", "--dry-run", "--json").json["queues"] == ["mail"]
    assert "an upgrade that was stopped is done now" in trunq("db", "upgrade").said


def test_a_repair_says_what_it_put_back_and_a_dry_run_what_it_would(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("drop index trunq_log.mail_txid_id_idx; drop trigger keep on trunq_log.mail")
    index = "trunq_log.mail has no index USING btree (txid, id)"
    assert f"{index}: --repair puts it back" in trunq("db", "upgrade", "--dry-run").said
    would = trunq("db", "upgrade", "--dry-run", "--repair").said
    assert f"{index}: is put back, in the end, by: create index on trunq_log.mail" in would
    assert "trunq_log.mail has no trigger keep: is put back" in would
    assert "Nothing was changed." in would
    planned = trunq("db", "upgrade", "--dry-run", "--repair", "--json").json
    assert [len(planned["defects"]), len(planned["repairs"])] == [2, 2]
    assert len(client.list_defects()) == 2
    assert "repaired" not in trunq("db", "upgrade").said
    assert [row.kind for row in client.list_defects("mail")] == ["index", "trigger"]
    done = trunq("db", "upgrade", "--repair").said
    assert f"Repaired: {index}." in done
    assert "2 defects were repaired." in done
    assert client.list_defects() == []
    assert "there is nothing to repair" in trunq("db", "upgrade", "--dry-run", "--repair").said
    assert trunq("db", "upgrade", "--repair", "--json").json["repaired"] == []


def test_a_dry_run_tells_what_is_repaired_after_the_upgrade_too(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("drop index trunq_log.mail_txid_id_idx; drop trigger keep on trunq_log.mail")
        session.execute(OUTDATED.encode())
    would = trunq("db", "upgrade", "--dry-run", "--repair").said
    assert "trunq_log.mail has no index USING btree (txid, id): is put back" in would
    assert "has no trigger" not in would, "the upgrade makes it"
    assert "1 log gets a trigger" in would
    assert len(client.list_defects()) == 2
    assert "1 defect was repaired." in trunq("db", "upgrade", "--repair").said
    assert client.list_defects() == []
