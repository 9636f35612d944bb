"""trunq queue convert."""

from __future__ import annotations

from json import loads

import psycopg

from shelling import Shell
from trunq import Client


def test_a_queue_is_converted_in_one_command(trunq: Shell, client: Client, database: str) -> None:
    trunq("queue", "create", "mail")
    client.publish_many("mail", [1, 2, 3], keys=["a", "a", "b"])
    done = trunq(
        "queue", "convert", "mail", "--lanes", "priority,key", "--unique", "refuse", "--retention", "14d"
    )
    assert done.status == 0, done.said
    assert "Index by lanes, step 1 of 2" in done.said
    assert "Queue mail is converted" in done.said
    assert "is so already" in trunq("queue", "convert", "mail", "--unique", "refuse").said
    told = loads(trunq("queue", "convert", "mail", "--hold-at-most", "30d", "--json").out)
    assert told == {"queue": "mail", "changed": True}
    assert sorted(message.id for message in client.lease("mail", "default", "w", 9)) == [1, 2, 3]
    assert client.list_defects() == [], "what guards a conversion is no defect: a repair would take it away"


def test_it_says_what_is_missing_and_who_is_in_the_way(trunq: Shell, database: str) -> None:
    trunq("queue", "create", "mail")
    assert "Say what the queue is to get" in trunq("queue", "convert", "mail").said
    with psycopg.connect(database) as publisher:
        publisher.execute("insert into trunq_log.mail (payload) values ('1')")
        done = trunq("queue", "convert", "mail", "--unique", "replace", "--wait", "0s")
        assert (done.status, "open transaction" in done.said) == (1, True)
    assert "has unique keys" not in trunq("queue", "convert", "mail", "--unique", "replace").said
    refused = trunq("queue", "convert", "mail", "--unique", "refuse")
    assert (refused.status, "make another queue" in refused.said) == (1, True)


def test_a_message_leased_by_its_id_ahead_is_in_the_way_and_the_advice_is_no_option_of_another_command(
    trunq: Shell, client: Client
) -> None:
    trunq("queue", "create", "mail")
    ids = client.publish_many("mail", [1, 2])
    client.lease("mail", "default", "desk", 1)
    client.publish_many("mail", [3, 4])
    client.lease_ids("mail", "default", "desk", [ids[0] + 3])
    refused = trunq("queue", "convert", "mail", "--lanes", "key")
    assert (refused.status, "lie ahead" in refused.said) == (1, True), refused.said
    assert "Let workers read what waits before them" in refused.said
    assert "--force" not in refused.said
    assert "drop it with all that is in it: --force" in trunq("queue", "drop", "mail").said
