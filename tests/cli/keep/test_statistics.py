"""What a time brought, as the shell shows it."""

from __future__ import annotations

import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture
def mail(client: Client) -> None:
    """Two minutes that are over: two messages a minute, of two kinds."""
    client.create_queue("mail")
    for minutes in (10, 5):
        client.publish_many("mail", [1, 2, 3], kinds=["welcome", "welcome", "bill"])
        with client.transaction() as connection:
            connection.execute(f"set local trunq.clock_offset = '-{minutes} minutes'".encode())
            messages = client.lease("mail", "default", "w", 3, connection=connection)
            client.ack(messages[:2], took=[0.02, 0.02], connection=connection)
            client.reject(messages[2], "no", connection=connection)
    with client.transaction() as connection:
        connection.execute("update trunq.queue set created_at = created_at - interval '20 minutes'")
    client.roll_up("mail")


@pytest.mark.usefixtures("mail")
def test_a_line_says_how_many_and_how_long(trunq: Shell) -> None:
    said = trunq("statistics").said
    assert "mail default welcome success 4 █ █ 21ms 21ms" in said
    assert "mail default bill rejected 2 █ █" in said
    assert trunq("statistics", "mail", "--together").said.count("success") == 1
    assert "bill" not in trunq("statistics", "--kind", "welcome").said


@pytest.mark.usefixtures("mail")
def test_scripts_get_all_of_it(trunq: Shell) -> None:
    rows = trunq("statistics", "mail", "--per", "1m", "--kind", "welcome", "--json").json
    assert [row["messages"] for row in rows] == [2, 2]
    assert rows[0]["took_median"] == pytest.approx(0.02, rel=0.1)
    assert trunq("statistics", "--csv").out.startswith("at,queue,subscription,kind,outcome,messages")
    minutes = trunq("statistics", "--per", "1m", "--kind", "bill").said
    assert minutes.count("rejected") == 2


def test_where_nothing_happened_it_says_so(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    assert "Nothing was answered in that time" in trunq("statistics").said
    assert "nowhere" in trunq("statistics", "nowhere").said
    assert "minute" in trunq("statistics", "--per", "1s").said
