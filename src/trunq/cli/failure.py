"""A failure as one clear sentence, and what to do about it."""

from __future__ import annotations

import re

import psycopg

from trunq.errors import SchemaMissing, SchemaNewer, SchemaOlder, TrunqError

WAYS_TO_A_DATABASE = "Pass --dsn postgresql://user@host/name, set TRUNQ_DSN, or use --embedded to start a Postgres of your own."


class Mistake(Exception):
    """A command that cannot be done as it was given; the text says why and what to do."""


class Interrupted(Mistake):
    """The user stopped a command; the text says how things stand."""


def explain(error: BaseException) -> str | None:
    """What to tell the user, or None when the error is a defect of ours and deserves its traceback."""
    match error:
        case Mistake():
            return str(error)
        case SchemaMissing():
            return f"{_sentence(error.message)} Run trunq db install first."
        case SchemaOlder():
            return f"{_sentence(error.message)} Run trunq db upgrade."
        case SchemaNewer():
            return f"{_sentence(error.message)} Upgrade this program: pip install --upgrade trunq."
        case TrunqError():
            return " ".join(_sentence(part) for part in (error.message, error.hint) if part)
        case psycopg.errors.InsufficientPrivilege():
            return f"{_sentence(_first_line(error))} Connect as the owner of the trunq schema, or ask them for the right."
        case psycopg.errors.ReadOnlySqlTransaction():
            return "This database is read-only (a standby, or set so). Connect to the primary."
        case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate.startswith(
            ("08", "28", "3D", "57P")
        ):
            return explain_connection(str(error))
        case psycopg.ProgrammingError() if error.sqlstate is None and "conninfo" in str(error).lower():
            return f"The address of the database cannot be read: {_sentence(_first_line(error))} {WAYS_TO_A_DATABASE}"
        case (
            PermissionError()
            | FileNotFoundError()
            | NotADirectoryError()
            | IsADirectoryError()
            | FileExistsError()
        ):
            return _explain_file(error)
        case OSError() if error.errno in (28, 30):
            return _explain_file(error)
        case _:
            return None


CONNECTION_TROUBLE = (
    (r"password authentication failed for user \"(.*?)\"", "Postgres refuses the password for user {0}. Check TRUNQ_DSN or ~/.pgpass."),
    (r"no password supplied", "Postgres wants a password and none was given. Put it into ~/.pgpass, PGPASSWORD or the DSN."),
    (r"database \"(.*?)\" does not exist", "There is no database {0} on that server. Create it with createdb {0}, or name another."),
    (r"role \"(.*?)\" does not exist", "The server knows no user {0}. Name another in the DSN, or create it with createuser {0}."),
    (r"could not translate host name \"(.*?)\"|failed to resolve host '(.*?)'", "No host is called {0}. Check the DSN."),
    (r"connection to server at (\".*?\").*?port (\d+) failed: (?:Connection refused|could not connect)",
     "No Postgres answers at {0} port {1}. Start it, or check the DSN."),
    (r"connection to server on socket \"(.*?)\" failed", "No Postgres answers on the socket {0}. Start it, or name a host in the DSN."),
    (r"no pg_hba.conf entry for (.*?)(?:, no encryption)?$", "The server does not let you in: no pg_hba.conf entry for {0}."),
    (r"too many clients|remaining connection slots", "The server has no connection left. Raise max_connections, or stop some clients."),
    (r"starting up|shutting down|terminating connection", "The server is stopping or starting. Try again in a moment."),
    (r"timeout expired|timed out", "The server did not answer in time. Check the DSN and the network."),
)  # fmt: skip


def explain_connection(text: str) -> str:
    """What libpq says about a connection that failed, as one sentence."""
    for pattern, sentence in CONNECTION_TROUBLE:
        if match := re.search(pattern, text, re.MULTILINE):
            return sentence.format(*(group.strip('"') for group in match.groups() if group))
    return f"The database cannot be reached: {_sentence(text.strip().splitlines()[-1].strip() if text.strip() else 'no reason given')}"


def _explain_file(error: OSError) -> str:
    place = error.filename or "the file"
    reason = (error.strerror or str(error)).lower()
    return f"{place}: {reason}. Name another place, or make it usable."


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
