"""What went wrong in Spark, in a sentence.

An error raised in one of Spark's Python processes arrives wrapped twice, as the text of a traceback inside
a Java exception. What the user has to know is a line or two of it.
"""

from __future__ import annotations

import re

import psycopg

from trunq.connection.backoff import first_line
from trunq.errors import TrunqError

OURS = re.compile(r"^(?:\w+\.)*trunq\.(?:spark\.)?errors\.\w+: (?P<message>.*(?:\nHINT: .*)?)", re.MULTILINE)

# Texts of others, where no better sign of the cause crosses the border between the processes.
KNOWN = (
    (
        r"\[DATA_SOURCE_NOT_FOUND\].*\btrunq",
        "this Spark session does not know trunq: start it with trunq.spark.session(), or call "
        "trunq.spark.register(spark)",
    ),
    (
        r"\[DATA_SOURCE_PUSHDOWN_DISABLED\]",
        "the option pushdown needs a session with spark.sql.python.filterPushdown.enabled set to true",
    ),
    (
        r"JAVA_GATEWAY_EXITED",
        "Spark's Java process ended before it was ready; what it said is above",
    ),
    (
        r"No space left on device",
        "the disk is full: free some space and start the query again, it goes on where it was",
    ),
    (
        r"Read-only file system",
        "Spark cannot write its checkpoint or output: the file system is read-only",
    ),
    (
        r"java\.lang\.OutOfMemoryError",
        "Spark's Java process ran out of memory: give it more, as in session(memory='2g')",
    ),
    (
        r"Multiple streaming queries are concurrently using (?P<what>\S+)",
        "another query uses the same checkpoint ({what}): stop it first",
    ),
)


def explain(error: BaseException) -> str:
    """The reason of an error that came out of Spark, in a sentence or two, without a traceback."""
    for each in _chain(error):
        if isinstance(each, TrunqError):
            return _sentence(str(each))
        if isinstance(each, psycopg.OperationalError):
            return f"the database cannot be reached: {first_line(each)}"
    texts = [str(each) for each in _chain(error)]
    for text in texts:
        if found := OURS.search(text):
            return _sentence(found.group("message"))
    for text in texts:
        for pattern, sentence in KNOWN:
            if found := re.search(pattern, text):
                return sentence.format(**found.groupdict())
    return _first_sentence(texts[0]) or type(error).__name__


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


def _sentence(message: str) -> str:
    return message.strip().replace("\nHINT: ", "; ")


def _first_sentence(text: str) -> str:
    """What a Python worker raised, else the first line, which has Spark's class of the error in brackets."""
    _, traced, trace = text.rpartition("Traceback (most recent call last):\n")
    lines = trace.splitlines()
    # A traceback's own lines are indented; the first that is not names the error.
    said = [line.strip() for line in lines if line.strip() and not (traced and line.startswith(" "))]
    return said[0][:300] if said else ""
