"""A failure as one clear sentence, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from trunq.errors import QueueInUse, QueueNotFound, SubscriptionNotFound, TrunqError

WAYS_TO_A_DATABASE: Final = (
    "Pass --dsn postgresql://user@host/name, set TRUNQ_DSN, or use --embedded for a Postgres of your own."
)

# What libpq says, and what it means for the one who typed the command.
CONNECTION_TROUBLE: Final = (
    (
        r"password authentication failed for user \"(.*?)\"",
        "Postgres refuses the password for user {0}. Check TRUNQ_DSN, --dsn or ~/.pgpass.",
    ),
    (
        r"no password supplied",
        "Postgres wants a password and was given none. Put it into ~/.pgpass, PGPASSWORD or the DSN.",
    ),
    (
        r"database \"(.*?)\" does not exist",
        "There is no database {0} on that server. Create it with createdb {0}, or name another.",
    ),
    (
        r"role \"(.*?)\" does not exist",
        "The server knows no user {0}. Name another in the DSN, or create it with createuser {0}.",
    ),
    (
        r"could not translate host name \"(.*?)\"|failed to resolve host '(.*?)'",
        "No host is called {0}. Check the DSN.",
    ),
    (
        r"connection to server at \"(.*?)\".*?port (\d+) failed: (?:Connection refused|could not connect)",
        "No Postgres answers at {0}, port {1}. Start it, or check the DSN.",
    ),
    (
        r"connection to server on socket \"(.*?)\" failed",
        "No Postgres answers on the socket {0}. Start it, or name a host in the DSN.",
    ),
    (
        r"no pg_hba.conf entry for (.*?)(?:, no encryption)?$",
        "The server does not let you in: pg_hba.conf has no entry for {0}.",
    ),
    (
        r"too many clients|remaining connection slots",
        "The server has no connection left. Raise max_connections, or stop some clients.",
    ),
    (
        r"starting up|shutting down|terminating connection",
        "The server is starting or stopping. Try again in a moment.",
    ),
    (
        r"timeout expired|timed out",
        "The server did not answer in time. Check the DSN and the network.",
    ),
)


SHELL_HINTS: Final[dict[type[TrunqError], str]] = {
    QueueNotFound: "Create it with trunq queue create NAME, or see what is there: trunq queue list.",
    SubscriptionNotFound: "Those there are: trunq status.",
    QueueInUse: "To drop it with all that is in it: --force.",
}
"""The way out as a command, where the database tells it as SQL."""


class Mistake(Exception):
    """A command that cannot be done as it was given; the text says why and what to do."""


class Interrupted(Mistake):
    """The user stopped a command; the text says how things stand."""


def explain(error: BaseException) -> str | None:
    """What to tell the user, or None when the error is a defect of ours and deserves its traceback."""
    match error:
        case Mistake():
            return str(error)
        case TrunqError():
            hint = SHELL_HINTS.get(type(error), error.hint)
            return " ".join(sentence(part) for part in (error.message, hint) if part)
        case psycopg.Error():
            return _explain_database(error)
        case PermissionError() | FileNotFoundError() | NotADirectoryError() | IsADirectoryError():
            return _explain_file(error)
        case OSError() if error.errno in (28, 30):  # no space left, read-only file system
            return _explain_file(error)
        case _:
            return None


def is_connection_trouble(error: psycopg.Error) -> bool:
    """Whether there was no connection at all, or none of use."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(("08", "28", "3D", "57P", "53300"))
    return isinstance(error, psycopg.OperationalError)


def explain_connection(said: str) -> str:
    """What libpq says about a connection that failed, as one sentence."""
    for pattern, meaning in CONNECTION_TROUBLE:
        if match := re.search(pattern, said, re.MULTILINE):
            return meaning.format(*(group for group in match.groups() if group))
    last = said.strip().splitlines()[-1].strip() if said.strip() else "it gives no reason"
    return f"The database cannot be reached: {sentence(last)}"


def sentence(text: str) -> str:
    """The text with a capital and a full stop; our own name stays small."""
    text = text.strip()
    start = text[:1] if text.startswith("trunq") else text[:1].upper()
    return start + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _explain_database(error: psycopg.Error) -> str | None:
    first_line = sentence(str(error).strip().partition("\n")[0])
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return f"{first_line} Connect as the owner of the trunq schema, or ask them for the right."
        case psycopg.errors.ReadOnlySqlTransaction():
            return "This database is read-only (a standby, or set so). Connect to the primary."
        case psycopg.errors.DiskFull():
            return "The database's disk is full. Free some space and try again; what was committed is there."
        case psycopg.ProgrammingError() if error.sqlstate is None:
            return f"The address of the database cannot be read: {first_line} {WAYS_TO_A_DATABASE}"
        case _:
            return explain_connection(str(error)) if is_connection_trouble(error) else None


def _explain_file(error: OSError) -> str:
    reason = sentence(error.strerror or str(error))
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{reason} Name another place, or make it usable."
