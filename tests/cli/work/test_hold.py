"""`trunq workers`: who holds what, and freeing it."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_what_a_dead_worker_holds_is_shown_asked_about_and_freed(trunq: Shell, client: Client) -> None:
    for queue in ("mail", "orders"):
        client.create_queue(queue)
        client.publish_many(queue, [1, 2, 3])
        client.lease(queue, "default", worker="shop-3", max_messages=2)
    rows = trunq("workers", "list", "--json").json
    assert [(row["worker"], row["queue"], row["held"]) for row in rows] == [
        ("shop-3", "mail", 2),
        ("shop-3", "orders", 2),
    ]
    assert "shop-3" in trunq("workers", "list", "mail").said
    refused = trunq("workers", "free", "shop-3")
    assert refused.status == 1
    assert "mail/default: 2 messages in 1 lease, since" in refused.said
    assert "Free what shop-3 holds? Nobody is here to answer" in refused.said
    assert "Ended 2 leases of shop-3." in trunq("workers", "free", "shop-3", "--yes").said
    assert trunq("workers", "list", "--json").json == []
    assert "shop-3 holds nothing." in trunq("workers", "free", "shop-3").said
    assert trunq("workers", "free", "shop-3", "--yes", "--json").json == {
        "worker": "shop-3",
        "leases": 0,
        "left": 0,
    }


def test_who_leads_and_when_duties_were_done(trunq: Shell, client: Client) -> None:
    assert "No process leads." in trunq("workers", "duties").said
    client.elect("vm-7")
    assert "vm-7 leads, in term 1." in trunq("workers", "duties").said
    assert {row["leader"] for row in trunq("workers", "duties", "--json").json} == {"vm-7"}
