"""No address with a password is told to anybody, however it is written."""

from __future__ import annotations

import logging

import psycopg
import pytest

from trunq import Client, InvalidArgument
from trunq.cli.ground.logs import _mask
from trunq.connection.backoff import first_line
from trunq.explanation import explain
from trunq.wire.secret import without_password

SECRET = "s3cr3t"
ADDRESSES = (
    "postgresql://u:s3cr3t@h/d",
    "postgres://u:s3cr3t%40%@h:5432/d?sslmode=require",
    "postgresql+psycopg://u:s3cr3t@h/d",
    "postgresql://u:a@s3cr3t/x@h/d",
    "postgresql://u:%zzs3cr3t@h/d",
    "postgresql://u:s3cr3t%@h/d",
    "postgresql://u:s3cr3t@h:port/d",
    "host=h user=u password=s3cr3t",
    "host=h password = 's3cr3t\\' x' user=u",
    "host=h PASSWORD=s3cr3t%zz",
    "postgresql://h/d?user=u&password=s3cr3t&sslmode=require",
    "postgresql://h/d?user=u&password=s3cr3t%zz",
    "postgresql://u:s3cr3t@[::1/d",
    "postgresql:/u:s3cr3t@h/d",
)


@pytest.mark.parametrize("address", ADDRESSES[:-1])
def test_an_address_in_a_text_loses_its_password(address: str) -> None:
    masked = without_password(f"cannot connect to {address}, says the library")
    assert SECRET not in masked
    assert masked.startswith("cannot connect to ")


@pytest.mark.parametrize("address", [each for each in ADDRESSES if "a@s3cr3t" not in each])
def test_what_libpq_says_of_an_address_tells_no_password(address: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        psycopg.connect(address, connect_timeout=1)
    found = explain(refused.value)
    record = logging.LogRecord("trunq", logging.ERROR, "", 0, "away: %s", (refused.value,), None)
    assert _mask(record)
    assert SECRET not in f"{first_line(refused.value)} {found} {record.getMessage()}"
    with pytest.raises((psycopg.Error, InvalidArgument)) as raised:
        Client(address, timeout=0.2).list_queues()
    assert SECRET not in first_line(raised.value)


def test_other_texts_stay_as_they_are() -> None:
    for text in (
        'relation "orders" does not exist',
        "see https://example.org:80/x@y",
        "the password is wrong",
    ):
        assert without_password(text) == text
