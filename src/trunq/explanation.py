"""Failures explained to people: what happened, and what to do about it.

The commands, the dashboard and `trunq.spark.explain` show the same explanations, each in its own form.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psycopg

from trunq.errors import TrunqError
from trunq.wire.secret import without_password

WAYS_TO_A_DATABASE: Final = (
    "Pass --dsn postgresql://user@host/name, set TRUNQ_DSN, or use --embedded for a Postgres of your own."
)

# What libpq says, what that means to the user, and what the user can do.
CONNECTION_TROUBLE: Final = (
    (
        r"password authentication failed for user \"(.*?)\"",
        "Postgres refuses the password for user {0}",
        "check TRUNQ_DSN, --dsn or ~/.pgpass",
    ),
    (
        r"no password supplied",
        "Postgres wants a password and was given none",
        "put it into ~/.pgpass, PGPASSWORD or the DSN",
    ),
    (
        r"database \"(.*?)\" does not exist",
        "there is no database {0} on that server",
        "create it with createdb {0}, or name another",
    ),
    (
        r"role \"(.*?)\" does not exist",
        "the server knows no user {0}",
        "name another in the DSN, or create it with createuser {0}",
    ),
    (
        r"could not translate host name \"(.*?)\"|failed to resolve host '(.*?)'",
        "no host is called {0}",
        "check the DSN",
    ),
    (
        r"connection to server at \"(.*?)\".*?port (\d+) failed: (?:Connection refused|could not connect)",
        "no Postgres answers at {0}, port {1}",
        "start it, or check the DSN",
    ),
    (
        r"connection to server on socket \"(.*?)\" failed",
        "no Postgres answers on the socket {0}",
        "start it, or name a host in the DSN",
    ),
    (
        r"no pg_hba.conf entry for (.*?)(?:, no encryption)?$",
        "the server does not let you in: pg_hba.conf has no entry for {0}",
        None,
    ),
    (
        r"too many clients|remaining connection slots",
        "the server has no connection left",
        "raise max_connections, or stop some clients",
    ),
    (
        r"starting up|shutting down|terminating connection",
        "the server is starting or stopping",
        "try again in a moment",
    ),
    (
        r"timeout expired|timed out",
        "the server did not answer in time",
        "check the DSN and the network",
    ),
)

# Texts of Spark and Java: no better sign of the cause crosses the border between the processes.
SPARK_TROUBLE: Final = (
    (
        r"\[DATA_SOURCE_NOT_FOUND\].*\btrunq",
        "this Spark session does not know trunq: start it with trunq.spark.session(), or call "
        "trunq.spark.register(spark)",
    ),
    (
        r"partitioning or clustering columns do not match the existing table's",
        "a batch into trunq_delta takes its partition columns as an option: .option('partitionBy', 'a,b') "
        "instead of .partitionBy('a', 'b')",
    ),
    (
        r"\[UNSUPPORTED_DATA_SOURCE_SAVE_MODE\].*\b(?P<what>trunq\w*)",
        "a batch into {what} adds or replaces: say .mode('append') or .mode('overwrite')",
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
        r'Cannot run program "[^"]*trunq-python"',
        "an executor has no trunq where the driver has it: install the same environment at the same path, or "
        "start the session with archives='venv.tar.gz#environment'",
    ),
    (
        r"trunq: (?P<what>\S+ on \S+ is Python [\d.]+, and the driver has [\d.]*\d)",
        "{what}: install the driver's on each machine, at the same path",
    ),
    (
        r"Python worker exited unexpectedly"
        # Java says no more than this when the other end of a pipe is gone: an EOFException has no text.
        r"|terminated with exception: (?:Broken pipe|Connection reset|.*EOF| *SQLSTATE)",
        "one of Spark's Python processes was killed, perhaps because memory ran out: start the query again, "
        "it goes on where it was",
    ),
    (
        r"Answer from Java side is empty|Error while (?:sending|receiving)"
        r"|^\[Errno \d+\] Connection refused",
        "Spark's Java process was killed, perhaps because memory ran out: start the program again, its "
        "queries go on where they were",
    ),
    (
        r"Multiple streaming queries are concurrently using (?P<what>\S+)",
        "another query uses the same checkpoint ({what}): stop it first",
    ),
)

OURS = re.compile(
    r"^(?:\w+\.)*trunq\.(?:spark\.|pipeline\.)?errors\.(?P<kind>\w+): (?P<message>.*(?:\nHINT: .*)?)",
    re.MULTILINE,
)
"""An error of trunq in the text of a traceback."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened and what to do, each a clause.

    `file` is the file or directory concerned; `kind` the name of trunq's error that was found in a text.
    """

    reason: str
    advice: str | None = None
    file: str | None = None
    kind: str | None = None

    @property
    def sentences(self) -> str:
        """Reason and advice as sentences of their own."""
        place = f"{self.file}: " if self.file else ""
        return place + " ".join(sentence(part) for part in (self.reason, self.advice) if part)

    @property
    def line(self) -> str:
        """Reason and advice as one line, to stand behind a colon."""
        place = f"{self.file}: " if self.file else ""
        return place + "; ".join(part for part in (self.reason, self.advice) if part)


def explain(error: BaseException) -> Explanation | None:
    """Explain an error; None means that it is a defect in the code, whose traceback should be shown."""
    match error:
        case TrunqError():
            return Explanation(error.message, error.hint)
        case psycopg.Error():
            return _explain_database(error)
        case PermissionError() | FileNotFoundError() | NotADirectoryError() | IsADirectoryError():
            return _explain_file(error)
        case OSError() if error.errno in (errno.ENOSPC, errno.EROFS):
            return _explain_file(error)
        case _:
            return None


def explain_spark(error: BaseException) -> Explanation:
    """Explain an error that came out of Spark, if need be by its own first line."""
    return recognise_spark(error) or Explanation(_raised_in(str(error)) or type(error).__name__)


def recognise_spark(error: BaseException) -> Explanation | None:
    """Explain an error that came out of Spark; None if nothing is known about it.

    Spark wraps an error of one of its Python processes twice: as the text of a traceback inside a Java
    exception. The user needs a line or two of that text.
    """
    chain = list(_causes(error))
    for each in chain:
        if isinstance(each, TrunqError | psycopg.Error) and (found := explain(each)) is not None:
            return found
    texts = [str(each) for each in chain]
    for text in texts:
        if ours := OURS.search(text):
            reason, _, advice = ours.group("message").strip().partition("\nHINT: ")
            return Explanation(reason, advice or None, kind=ours["kind"])
    for text in texts:
        for pattern, reason in SPARK_TROUBLE:
            if known := re.search(pattern, text):
                return Explanation(reason.format(**known.groupdict()))
    return None


def explain_connection(said: str) -> Explanation:
    """Explain what libpq says about a connection that failed."""
    for pattern, reason, advice in CONNECTION_TROUBLE:
        if match := re.search(pattern, said, re.MULTILINE):
            named = [group for group in match.groups() if group]
            return Explanation(reason.format(*named), advice.format(*named) if advice else None)
    last = said.strip().splitlines()[-1].strip() if said.strip() else "it gives no reason"
    return Explanation(f"the database cannot be reached: {sentence(without_password(last))}")


def is_connection_trouble(error: psycopg.Error) -> bool:
    """Whether there was no connection at all, or no usable one."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(("08", "28", "3D", "57P", "53300"))
    return isinstance(error, psycopg.OperationalError)


def sentence(text: str) -> str:
    """The text with a capital and a full stop; trunq and the names of arguments stay in lower case."""
    text = text.strip()
    start = text[:1] if re.match(r"trunq|pip |[a-z]+_", text) else text[:1].upper()
    return start + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _explain_database(error: psycopg.Error) -> Explanation | None:
    first_line = without_password(str(error)).strip().partition("\n")[0]
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return Explanation(
                first_line,
                "connect as the owner of the trunq schema (a member of that role with NOINHERIT says SET ROLE"
                " first), or ask them for the right",
            )
        case psycopg.errors.ReadOnlySqlTransaction():
            return Explanation(
                "this database is read-only: it is a standby, or default_transaction_read_only is set",
                "connect to the primary; where it is set, PGOPTIONS='-c default_transaction_read_only=off' in"
                " front of a command undoes it",
            )
        case psycopg.errors.QueryCanceled():
            return Explanation(
                "the database ended a statement: it took longer than statement_timeout allows, or somebody"
                " cancelled it",
                "PGOPTIONS='-c statement_timeout=0' in front of a command lets it take longer",
            )
        case psycopg.errors.LockNotAvailable():
            return Explanation(
                f"somebody else has what this needs, for longer than lock_timeout allows: {first_line}",
                "pg_stat_activity (xact_start) or pg_prepared_xacts shows who has a transaction open; end it,"
                " or try again",
            )
        case psycopg.errors.DiskFull():
            return Explanation(
                "the database's disk is full", "free some space and try again; what was committed is there"
            )
        case psycopg.ProgrammingError() if error.sqlstate is None:
            return Explanation(
                f"the address of the database cannot be read: {sentence(first_line)}", WAYS_TO_A_DATABASE
            )
        case _:
            return explain_connection(str(error)) if is_connection_trouble(error) else None


def _explain_file(error: OSError) -> Explanation:
    return Explanation(
        error.strerror or str(error),
        "name another place, or make it usable",
        str(error.filename) if error.filename else None,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what caused it, and so on."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _raised_in(text: str) -> str:
    """The error at the end of a traceback in the text, else the text's first line."""
    _, traced, trace = text.rpartition("Traceback (most recent call last):\n")
    lines = trace.splitlines()
    # A traceback indents its own lines; the first line that is not indented names the error.
    said = [line.strip() for line in lines if line.strip() and not (traced and line.startswith(" "))]
    return said[0][:300] if said else ""
