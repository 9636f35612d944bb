"""A dashboard over a hot standby: it shows what is there, and says why nothing can be changed."""

from __future__ import annotations

import re

import psycopg
import pytest

from browsing import browse, do, shop
from calling import call
from standby import primary_and_standby
from trunq import embedded
from trunq.diagnosis import diagnose
from trunq.web.pages import PAGES

THERE = {"queue": "orders", "subscription": "default", "id": "1"}


@pytest.mark.slow
def test_a_standby_is_shown_and_whoever_changes_something_is_told_that_it_is_one() -> None:
    with primary_and_standby(embedded.majors()[0]) as pair:
        with psycopg.connect(pair.primary.dsn, autocommit=True) as session:
            orders = shop(session)
            call(session, "elect", name="me", lease_time="1 day")
            call(session, "sample")
        pair.caught_up()
        for read_only in (True, False):
            with browse(pair.standby.dsn, read_only=read_only) as page:
                for path, _ in PAGES:
                    names = re.findall(r"{(\w+)", path)
                    if not {*names} <= {*THERE}:
                        continue
                    answer = page.get(re.sub(r"{(\w+)[^}]*}", lambda found: THERE[found[1]], path))
                    assert answer.status_code in (200, 303), path
                    for trouble in ("is away", "cannot execute", "recovery"):
                        assert trouble not in answer.text, path
                assert [page.get(path).status_code for path in ("/metrics", "/readyz")] == [200, 200]
                said = do(page, "pause_queue", queue=orders.queue)
                assert ("read-only" if read_only else "it is a standby") in said
        found = [(row.area, row.severity) for row in diagnose(pair.standby.dsn)]
        assert found == [("wake-up", "unseen")]
