"""The chapter of the report about the second act: its text and tables."""

from __future__ import annotations

from html import escape

from trunq_demo import board
from trunq_demo.evidence import Act, Check, Customer, Kept, PipelineLine


def numbers(act: Act) -> dict[str, str]:
    """The values of the placeholders in the page."""
    killed = next((run for run in act.runs if run.was_killed and run.pipeline == "departures"), None)
    return {
        "act_month": escape(act.month),
        "act_seconds": f"{act.seconds:.0f}",
        "act_calls": f"{act.api.calls:,}",
        "act_refused": f"{act.api.refused:,}",
        "act_failed": f"{act.api.failed:,}",
        "act_killed": _killed(killed),
        "act_runs": "\n".join(map(_run, act.runs)),
        "act_kept": "\n".join(map(_kept, act.kept)),
        "act_customers": "\n".join(map(_customer, act.customers)),
        "act_limit": f"{board.ROWS_A_DAY:,}",
        "act_throttled": _throttled(act.customers),
        "act_changed": _changed(act.customers),
        "act_checks": "\n".join(map(check_row, act.checks)),
    }


def check_row(check: Check) -> str:
    """A number, twice."""
    return (
        f'<tr><td>{escape(check.what)}</td><td class="number">{check.expected:,}</td>'
        f'<td class="number">{check.found:,}</td>'
        f'<td class="{"good" if check.holds else "bad"}">{"same" if check.holds else "differs"}</td></tr>'
    )


def _killed(run: PipelineLine | None) -> str:
    if run is None:
        return ""
    killed = (
        f"Run {run.number} of {escape(run.pipeline)} was at work when its runner and Spark got a kill -9."
    )
    if run.attempts == 1:
        return f"{killed} Its {run.rows_out:,} rows were in the lake already, and are there once."
    return (
        f"{killed} The next runner took the same slice up, and brought its {run.rows_out:,} rows in attempt"
        f" {run.attempts}."
    )


def _run(run: PipelineLine) -> str:
    tone = ' class="cut"' if run.was_killed else ""
    said = "killed, and done" if run.was_killed and run.outcome == "done" else run.outcome
    after = f" <span class=soft>after {escape(run.after)}</span>" if run.after else ""
    counts = "".join(
        f'<td class="number">{number:,}</td>'
        for number in (run.attempts, run.rows_in, run.rows_out, run.rows_bad)
    )
    return (
        f'<tr{tone}><td class="number">{run.at:.1f} s</td><td>{escape(run.pipeline)} {run.number}{after}</td>'
        f'{counts}<td class="number">{run.seconds:.1f} s</td><td>{escape(said)}</td></tr>'
    )


def _customer(customer: Customer) -> str:
    counts = "".join(
        f'<td class="number">{number:,}</td>'
        for number in (len(customer.asked), len(customer.runs), customer.rows, customer.kept)
    )
    return (
        f'<tr><td>{escape(customer.name)}</td>{counts}<td class="number">{customer.waited:.1f} s</td>'
        f'<td class="number">{customer.age:.1f} s</td><td>{escape("; ".join(customer.changes))}</td></tr>'
    )


def _throttled(customers: list[Customer]) -> str:
    """Who reached the limit, and how that was seen."""
    late = next((each for each in customers if each.put_off is not None), None)
    if late is None or late.put_off is None:
        return ""
    return (
        f"{escape(late.name)} has more flights than that: its last request waited, for"
        f" {late.put_off.ended - late.put_off.began:.1f} s, until the limit was raised; no other airport did."
        f" Meanwhile <code>trunq status</code> said: <i>{escape(late.put_off.warning)}</i>."
    )


def _changed(customers: list[Customer]) -> str:
    changed = [f"{each.name} ({change})" for each in customers for change in each.changes]
    return escape(", ".join(changed))


def _kept(kept: Kept) -> str:
    return (
        f"<tr><td>{escape(kept.pipeline)}</td><td>{escape(kept.reason)}</td>"
        f'<td class="number">{kept.rows:,}</td></tr>'
    )
