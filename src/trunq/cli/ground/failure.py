"""What a command says when it cannot do its work."""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote
from typing import Final

from trunq import explanation
from trunq.errors import (
    PipelineNotFound,
    QueueClosed,
    QueueFull,
    QueueNotFound,
    ScheduleNotFound,
    SubscriptionNotFound,
    TransactionTooLarge,
    TrunqError,
)

SHELL_HINTS: Final[dict[type[BaseException], str]] = {
    QueueNotFound: "Create it with trunq queue create NAME, or see what is there: trunq queue list.",
    SubscriptionNotFound: "Those there are: trunq subscription list.",
    PipelineNotFound: "Those there are: trunq pipeline list.",
    ScheduleNotFound: "Those there are: trunq schedule list.",
    QueueFull: "Publish again when its workers have caught up, or raise --max-waiting with trunq queue set.",
    QueueClosed: "Whoever closed it opens it again: trunq queue open.",
    TransactionTooLarge: "Commit in between, or raise --max-per-transaction with trunq queue set.",
}
"""The advice as a command, where the database gives it as SQL."""


_FILTER: Final = "--kind, --key, --header or --column"
"""The options that a filter is given by."""


class Mistake(Exception):
    """A command that cannot be done as it was given; the text says why and what to do."""


class Interrupted(Mistake):
    """The user stopped a command; the text says how things stand."""


def explain(error: BaseException) -> str | None:
    """What to tell the user, or None when the error is a defect of ours and deserves its traceback."""
    if isinstance(error, Mistake):
        return str(error)
    found = explanation.explain(error)
    if found is None:
        return None
    if isinstance(error, TrunqError):
        advice = SHELL_HINTS.get(type(error)) or in_shell(found.advice or "")
        if isinstance(error, QueueNotFound) and '"pipelines"' in found.reason:
            # Made by hand it would lack the lanes that pipelines with `per` take turns by.
            advice = "The first pipeline brings it: trunq pipeline create FILE."
        found = replace(found, reason=in_shell(found.reason), advice=advice)
    return found.sentences


def in_shell(text: str) -> str:
    """What the database says, with options of commands where it names parameters of functions."""
    text = text.replace("p_filter => '{}'", "--no-filter")
    text = text.replace("(trunq.subscribe, p_filter)", f"(trunq subscription create, {_FILTER})")
    text = re.sub(r"\bp_filter\b", _FILTER, text)
    text = re.sub(r"\bp_(\w+) => ('?)(\w+)\2", _option, text)
    text = re.sub(r"select trunq\.unsubscribe\('(\w+)', '([^']+)'\)", r"trunq subscription drop \1 \2", text)
    text = re.sub(r"select trunq\.resume_queue\('(\w+)'\)", r"trunq queue resume \1", text)
    text = re.sub(
        r"select trunq\.resume_subscription\('(\w+)', '([^']+)'\)", r"trunq subscription resume \1 \2", text
    )
    text = re.sub(
        r"select trunq\.resume_lane\('(\w+)', '([^']+)', '([^']*)'(?:, (-?\d+)::smallint)?\)",
        _resume_lane,
        text,
    )
    text = re.sub(
        r"select trunq\.grant_role\('(\w+)', '(\w+)', '([\w.@-]+)'\)", r"trunq role grant \1 \2 \3", text
    )
    text = re.sub(r"select trunq\.end_session\((\d+), '[^']+'\)", r"trunq session end \1", text)
    text = re.sub(r"(?:select )?trunq\.accept_loss\('(\w+)', '([^']+)'\)", r"trunq stream accept \1 \2", text)
    text = re.sub(r"select \* from trunq\.list_losses\('(\w+)'\)", r"trunq stream losses \1", text)
    text = re.sub(
        r"select trunq\.subscribe\('(\w+)', '([^']+)', [^-)]*(--[^)]+)\)",
        r"trunq subscription set \1 \2 \3",
        text,
    )
    text = re.sub(r"select trunq\.set_\w+\('(\w+)', (--[^)]+)\)", r"trunq queue set \1 \2", text)
    text = re.sub(r"select trunq\.convert_queue\('(\w+)', (--[^)]+)\)", r"trunq queue convert \1 \2", text)
    text = text.replace("trunq.convert_queue", "trunq queue convert")
    text = re.sub(r"(,?) or force it$", r"\1 or drop it with all that is in it: --force", text)
    text = text.replace("--tick-external", "--ticks external")
    text = re.sub(r"trunq\.create_queue\(\.\.\., (--[^)]+)\)", r"trunq queue create NAME \1", text)
    return re.sub(r"\bp_(\w+)", lambda found: "--" + found[1].replace("_", "-"), text)


def _resume_lane(found: re.Match[str]) -> str:
    queue, subscription, lane, priority = found.groups("0")
    said = f"trunq lane resume {queue}" + (f" {quote(lane)}" if lane or priority == "0" else "")
    said += f" --priority {priority}" if priority != "0" else ""
    return said + (f" --subscription {subscription}" if subscription != "default" else "")


def _option(found: re.Match[str]) -> str:
    name, value = found[1].replace("_", "-"), found[3]
    return {"true": f"--{name}", "false": f"--no-{name}"}.get(value, f"--{name} {value}")
