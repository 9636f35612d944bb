"""Groups from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_a_group_is_made_listed_shown_and_ended(trunq: Shell, client: Client) -> None:
    client.create_queue("orders", default_subscription=False)
    assert trunq("group", "list").said == "There are no groups: trunq group create makes one."
    said = trunq("group", "create", "orders", "ledgers", "--slots", "4").said
    assert said == "Group ledgers of orders is there: give each member a name."
    again = trunq("group", "create", "orders", "ledgers", "--slots", "4", "--json").json
    assert again == {"queue": "orders", "group": "ledgers", "slots": 4, "created": False}
    client.publish_many("orders", [1, 2], keys=["a", "b"])
    batch = client.next_batch("orders", "ledgers", "ada")
    assert batch is not None
    (row,) = trunq("group", "list", "orders", "--json").json
    assert (row["group_name"], row["slots"], row["alive"], row["pending"]) == ("ledgers", 4, 1, 2)
    assert "ledgers" in trunq("group", "list").said
    shown = trunq("group", "show", "orders", "ledgers", "--json").json
    assert [(each["member"], each["batch_id"]) for each in shown["members"]] == [("ada", batch.batch_id)]
    assert "ada" in trunq("group", "show", "orders", "ledgers").said
    assert trunq("subscription", "set", "orders", "ledgers", "--max-attempts", "3").status == 0
    assert [each.max_attempts for each in client.list_subscriptions("orders")] == [3]
    assert trunq("stream", "show", "orders", "ledgers", "--json").json["pending"] == 2
    asked = trunq("group", "drop", "orders", "ledgers")
    assert asked.status != 0
    assert trunq("group", "drop", "orders", "ledgers", "--yes").said == (
        "Queue orders has no group ledgers any more."
    )
    assert "Those there are: trunq group list orders" in trunq("group", "show", "orders", "ledgers").said


def test_slots_that_cannot_be_are_refused(trunq: Shell, client: Client) -> None:
    client.create_queue("orders")
    for slots in ("0", "3", "2048"):
        asked = trunq("group", "create", "orders", "ledgers", "--slots", slots)
        assert asked.status != 0
        assert "a power of two" in asked.said
