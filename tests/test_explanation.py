"""Failures explained: the same error, as sentences for the shell and in a line for a log."""

from __future__ import annotations

import psycopg
import pytest

from trunq.errors import QueueNotFound
from trunq.explanation import Explanation, explain, explain_spark

TRACEBACK = """An exception was thrown by the Python data source:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    work()
{error}
"""


def test_an_explanation_is_sentences_or_a_line() -> None:
    found = explain(QueueNotFound('there is no queue "q"', "create it first"))
    assert found is not None
    assert found.sentences == 'There is no queue "q". Create it first.'
    assert found.line == 'there is no queue "q"; create it first'
    file = Explanation("no such file", "name another", "letter.json")
    assert (file.sentences, file.line) == (
        "letter.json: No such file. Name another.",
        "letter.json: no such file; name another",
    )


def test_a_defect_has_no_explanation_even_while_an_error_of_ours_is_handled() -> None:
    defect = KeyError("x")
    defect.__context__ = QueueNotFound("there is no queue")
    assert explain(defect) is None
    assert explain_spark(defect).line == "there is no queue"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            TRACEBACK.format(error="trunq.spark.errors.LakeMismatch: it does not fit\nHINT: write elsewhere"),
            "it does not fit; write elsewhere",
        ),
        (TRACEBACK.format(error="trunq.errors.TickNotFound: no tick 3"), "no tick 3"),
        (TRACEBACK.format(error="ValueError: seven"), "ValueError: seven"),
        ("java.lang.OutOfMemoryError: heap", "Spark's Java process ran out of memory: give it more"),
        (
            "Multiple streaming queries are concurrently using file:/c/offsets now",
            "another query uses the same checkpoint (file:/c/offsets): stop it first",
        ),
        (
            "Error from python worker:\n  trunq: /venv/python on a is Python 3.12, and the driver has 3.11",
            "/venv/python on a is Python 3.12, and the driver has 3.11: install the driver's on each",
        ),
        ("[SOME_CLASS] what Spark says\nand a stack", "[SOME_CLASS] what Spark says"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_out_of_spark_is_explained_by_its_text(said: str, line: str) -> None:
    found = explain_spark(RuntimeError(said)).line
    assert found.startswith(line)
    assert "\n" not in found


def test_a_lost_connection_is_explained_the_same_everywhere() -> None:
    error = psycopg.OperationalError("FATAL:  sorry, too many clients already")
    assert explain(error) == explain_spark(error)
    assert explain_spark(error).line == (
        "the server has no connection left; raise max_connections, or stop some clients"
    )
