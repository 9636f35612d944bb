"""Every feature of a queue beside every other, through every verb, against one model: single features have
tests of their own, and what broke lay where two of them meet.

A new feature gets a name here, what it asks of a queue in model/walk.py, and what it changes in
model/matrix.py. A run walks each feature alone and every third pair; TRUNQ_TEST_ALL walks them all.
"""

from __future__ import annotations

from itertools import combinations
from zlib import crc32

import psycopg
import pytest

from model.walk import Walk
from scope import ALL

FEATURES = (
    "plain",
    "lanes",
    "priority",
    "in_order",
    "limits",
    "refuse",
    "replace",
    "filter",
    "archive",
    "at_once",
    "taker",
    "awaited",
    "tenant",
    "capture",
    "group",
    "hold_size",
    "aged",
    "forward",
    "due_first",
    "asks",
)
CHOICES = (
    {"refuse", "replace"},
    {"in_order", "priority"},
    *({first, lanes} for first in ("due_first", "asks") for lanes in ("lanes", "priority", "in_order")),
    {"due_first", "asks"},
)
"""Of which a queue has one: the policy of its unique keys, lanes by key alone where it keeps an order, and
lanes, what fell due first, or leases that ask for a part.
"""

PAIRS = [
    pair
    for pair in combinations(FEATURES, 2)
    if set(pair) not in CHOICES and ("plain" in pair or crc32("+".join(pair).encode()) % 3 == 0 or ALL)
]


@pytest.mark.slow
@pytest.mark.parametrize("features", PAIRS, ids="+".join)
def test_two_features_meet_and_every_message_is_where_its_model_says(
    session: psycopg.Connection[object], features: tuple[str, str]
) -> None:
    Walk(session, features).run()
