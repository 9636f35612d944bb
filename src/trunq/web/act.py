"""What may be changed: each act calls the function of its name, and says in a sentence what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trunq.display import counted
from trunq.errors import InvalidArgument
from trunq.record.operate import HOLDERS
from trunq.web import sweeping
from trunq.web.call import Call, Question, messages, parsed
from trunq.web.database import PATIENT_WITHIN, Turns
from trunq.web.guard import root_of
from trunq.web.page import HIDDEN, Desk, asking, moment, text, whole
from trunq.web.pages.dead import COUNTED, filter_of
from trunq.word import Start

TYPED_FROM: Final = 1_000
"""From so many messages on, a purge wants the name of the queue typed."""
_questions = Turns()
"""A question may look at each of many messages."""


async def pause_subscription(call: Call) -> str:
    """Pause a subscription."""
    queue, subscription = call.need("queue"), call.need("subscription")
    until = moment(call.given, "until")
    await call.client.pause_subscription(queue, subscription, until, connection=call.connection)
    return f"{queue}/{subscription} is paused{_until(until)}"


async def resume_subscription(call: Call) -> str:
    """End the pause of a subscription."""
    queue, subscription = call.need("queue"), call.need("subscription")
    did = await call.client.resume_subscription(queue, subscription, connection=call.connection)
    return f"{queue}/{subscription} {'goes on' if did else 'was not paused'}"


async def pause_queue(call: Call) -> str:
    """Pause all of a queue."""
    queue, until = call.need("queue"), moment(call.given, "until")
    await call.client.pause_queue(queue, until, connection=call.connection)
    return f"All of {queue} is paused{_until(until)}"


async def resume_queue(call: Call) -> str:
    """End the pause of a queue."""
    queue = call.need("queue")
    did = await call.client.resume_queue(queue, connection=call.connection)
    return f"{queue} {'goes on' if did else 'was not paused'}"


async def pause_lane(call: Call) -> str:
    """Pause a lane."""
    await call.client.pause_lane(
        call.need("queue"),
        text(call.given, "subscription"),
        lane=text(call.given, "lane"),
        priority=whole(call.given, "priority"),
        until=moment(call.given, "until"),
        connection=call.connection,
    )
    return f"Lane {text(call.given, 'lane') or whole(call.given, 'priority')} is paused"


async def resume_lane(call: Call) -> str:
    """End the pause of a lane."""
    did = await call.client.resume_lane(
        call.need("queue"),
        text(call.given, "subscription"),
        lane=text(call.given, "lane"),
        priority=whole(call.given, "priority"),
        connection=call.connection,
    )
    lane = text(call.given, "lane") or whole(call.given, "priority")
    return f"Lane {lane} {'goes on' if did else 'was not paused'}"


async def pause_schedule(call: Call) -> str:
    """Pause a schedule."""
    name = call.need("schedule")
    await call.client.pause_schedule(name, moment(call.given, "until"), connection=call.connection)
    return f"Schedule {name} is paused"


async def resume_schedule(call: Call) -> str:
    """End the pause of a schedule."""
    name = call.need("schedule")
    did = await call.client.resume_schedule(name, connection=call.connection)
    return f"Schedule {name} {'goes on' if did else 'was not paused'}"


async def pause_pipeline(call: Call) -> str:
    """Pause a pipeline."""
    name = call.need("pipeline")
    await call.client.pause_pipeline(name, moment(call.given, "until"), connection=call.connection)
    return f"Pipeline {name} is paused"


async def resume_pipeline(call: Call) -> str:
    """End the pause of a pipeline."""
    name = call.need("pipeline")
    did = await call.client.resume_pipeline(name, connection=call.connection)
    return f"Pipeline {name} {'goes on' if did else 'was not paused'}"


async def run_pipeline(call: Call) -> str:
    """Ask for a run."""
    name = call.need("pipeline")
    id = await call.client.run_pipeline(name, connection=call.connection)
    return f"Message {id} asks for a run of {name}"


async def cancel_pipeline(call: Call) -> str:
    """Cancel the open run."""
    name = call.need("pipeline")
    did = await call.client.cancel_pipeline(name, connection=call.connection)
    return f"The run of {name} is cancelled" if did else f"{name} has no open run"


async def ask_cancel_pipeline(call: Call) -> Question:
    """Which run."""
    name = call.need("pipeline")
    return Question(f"Cancel the open run of pipeline {name}?", "Cancel the run", {"pipeline": name})


async def resend_quarantine(call: Call) -> str:
    """Ask for a run that sends rows of one reason again."""
    name, reason = call.need("pipeline"), call.need("reason")
    id = await call.client.resend_quarantine(name, reason, connection=call.connection)
    return f"Message {id} asks for a run of {name} that sends them again"


async def tick(call: Call) -> str:
    """Cut a tick at once."""
    queue = call.need("queue")
    id = await call.client.tick(queue, force=True, connection=call.connection)
    return f"Tick {id} is cut" if id is not None else "No tick was cut: another session cuts one"


async def publish(call: Call) -> str:
    """Publish what the form says."""
    queue, content = call.need("queue"), text(call.given, "payload")
    payload, headers = parsed("payload", content), parsed("headers", text(call.given, "headers"))
    if HIDDEN in (payload, headers):
        raise InvalidArgument(
            "what is hidden here cannot be copied", "write the payload and the headers anew"
        )
    id = await call.client.publish(
        queue,
        payload,
        kind=text(call.given, "kind"),
        key=text(call.given, "key"),
        headers=headers,
        priority=whole(call.given, "priority"),
        connection=call.connection,
    )
    return f"Message {id} is published in {queue}"


async def cancel(call: Call) -> str:
    """Cancel a message, or all that match."""
    queue, id = call.need("queue"), whole(call.given, "id")
    if id is None:
        return await start_sweep(call)
    rows = await call.client.cancel(queue, [id], text(call.given, "subscription"), connection=call.connection)
    return f"Message {id} is cancelled; it was {', '.join(sorted({row.state for row in rows}))}"


async def ask_cancel(call: Call) -> Question:
    """Which message, or how many."""
    queue, id = call.need("queue"), whole(call.given, "id")
    if id is None:
        return await sweeping.ask_cancel(call)
    return Question(
        f"Cancel message {id} of {queue}? It will not run. If it runs already, its worker is told.",
        "Cancel the message",
        {"queue": queue, "id": id},
    )


async def run_schedule(call: Call) -> str:
    """Publish the message of a schedule now."""
    name = call.need("schedule")
    id = await call.client.run_schedule(name, connection=call.connection)
    return f"Schedule {name} published message {id}"


async def ask_run_schedule(call: Call) -> Question:
    """Which schedule."""
    name = call.need("schedule")
    return Question(
        f"Publish the message of schedule {name} now, besides its times? Those stay as they are.",
        "Run it now",
        {"schedule": name},
    )


async def start_sweep(call: Call) -> str:
    """An act on all that match, in parts."""
    return await sweeping.start(call)


async def ask_start_sweep(call: Call) -> Question:
    """What is done to a group of dead messages, in whichever queues."""
    return await sweeping.ask_group(call)


async def stop_sweep(call: Call) -> str:
    """Stop one before its next part."""
    queue, id = call.need("queue"), whole(call.given, "sweep_id")
    if id is None:
        raise InvalidArgument("sweep_id is missing")
    did = await call.client.stop_sweep(queue, id, connection=call.connection)
    return f"Sweep {id} of {queue} {'stops' if did else 'had ended'}"


async def requeue(call: Call) -> str:
    """Have dead messages run again."""
    queue = call.need("queue")
    if text(call.given, "act") is not None:
        return await start_sweep(call)
    n = await call.client.requeue(
        queue,
        before=whole(call.given, "before"),
        limit=COUNTED,
        connection=call.connection,
        **call.dead(),
    )
    _require_counted(call, n, "requeued")
    return f"{messages(n)} of {queue} requeued"


async def purge(call: Call) -> str:
    """Delete dead messages."""
    queue = call.need("queue")
    if text(call.given, "act") is not None:
        return await start_sweep(call)
    if (whole(call.given, "count") or 0) >= TYPED_FROM:
        sweeping.require_typed(call, queue)
    n = await call.client.purge(
        queue,
        before=whole(call.given, "before"),
        limit=COUNTED,
        connection=call.connection,
        **call.dead(),
    )
    _require_counted(call, n, "purged")
    # Whatever a form says that is not ours.
    if n >= TYPED_FROM:
        sweeping.require_typed(call, queue)
    return f"{messages(n)} of {queue} purged"


def _require_counted(call: Call, done: int, word: str) -> None:
    """Take back what is more than the question said: what was hidden since is no part of the filter."""
    counted = whole(call.given, "count")
    if counted is not None and done > counted:
        raise InvalidArgument(
            f"nothing was {word}: {done:,} match, and {counted:,} were counted", "count them again"
        )


async def ask_requeue(call: Call) -> Question:
    """How many."""
    return await _ask_dead(call, "Requeue", "They run again, from their first attempt.")


async def ask_purge(call: Call) -> Question:
    """How many; of many, the name of the queue is to be typed."""
    return await _ask_dead(call, "Purge", "Nothing brings them back.")


async def _ask_dead(call: Call, word: str, then: str) -> Question:
    queue, wanted = call.need("queue"), call.dead()
    newest = await call.client.list_dead(queue, limit=1, brief=True, connection=call.connection)
    before = newest[0].dead_id + 1 if newest else 1
    until = await sweeping.now(call)
    n = await call.client.count_dead(
        queue, before=before, limit=sweeping.COUNTED_TO + 1, connection=call.connection, **wanted
    )
    said = {name: value for name, value in wanted.items() if name != "ids"}
    where = f" with {', '.join(f'{name} {value}' for name, value in said.items())}" if said else ""
    many = sweeping.how_many(n, "dead ")
    fields = {**filter_of(call.given, call.hidden), "queue": queue, "before": before, "count": n}
    goes_on = ""
    if n > COUNTED:
        fields |= {"act": word.lower(), "until": until.isoformat()}
        goes_on = f" {sweeping.GOES_ON}"
    return Question(
        f"{word} {many} of {queue}{where}? {then} What died after this count stays.{goes_on}",
        f"{word} {sweeping.how_many(n)}",
        fields,
        typed=queue if word == "Purge" and n >= TYPED_FROM else None,
        is_possible=n > 0,
    )


async def seek(call: Call) -> str:
    """Move a stream."""
    queue, subscription = call.need("queue"), call.need("subscription")
    start = text(call.given, "start")
    if start not in (None, "earliest", "latest"):
        raise InvalidArgument("start is earliest or latest")
    at = await call.client.seek(
        queue,
        subscription,
        whole(call.given, "tick_id"),
        moment(call.given, "at"),
        cast("Start | None", start),
        connection=call.connection,
    )
    return f"{queue}/{subscription} stands at tick {at}"


async def ask_seek(call: Call) -> Question:
    """Where from, where to, and what comes again."""
    queue, subscription = call.need("queue"), call.need("subscription")
    rows = await call.client.list_streams(queue, connection=call.connection)
    here = next((row for row in rows if row.subscription == subscription), None)
    given = {name: text(call.given, name) for name in ("tick_id", "at", "start")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise InvalidArgument("say where to: a tick, a time, or the start")
    value = next(iter(chosen.values()))
    moved = f"tick {value}" if "tick_id" in chosen else "now" if value == "latest" else value
    moved = "the first tick that is kept" if value == "earliest" else moved
    stands = f"It stands at tick {here.position_tick_id} of {here.newest_tick_id}. " if here else ""
    again = await _again(call, queue, here, chosen)
    return Question(
        f"Move {queue}/{subscription} to {moved}? {stands}{again}An open batch ends.",
        "Move it",
        {"queue": queue, "subscription": subscription, **chosen},
    )


async def _again(call: Call, queue: str, here: Any, chosen: dict[str, str]) -> str:
    """About how many messages come again, or are left out."""
    tick_id = whole(call.given, "tick_id")
    if chosen.get("start") == "earliest" and here is not None:
        tick_id = here.first_tick_id
    elif chosen.get("start") == "latest" and here is not None:
        tick_id = here.newest_tick_id
    if tick_id is None or here is None:
        return ""
    places = [
        row.last_message_id
        for each in (tick_id, here.position_tick_id)
        for row in await call.client.list_ticks(queue, each, each, connection=call.connection)
    ]
    if len(places) != 2:
        return ""
    n = places[1] - places[0]
    what = "will be handed out again" if n >= 0 else "will be left out"
    return f"About {counted(abs(n), 'message')} {what}. "


async def free_worker(call: Call) -> str:
    """End the leases of a worker."""
    worker = call.need("worker")
    n = await call.client.free_worker(worker, connection=call.connection)
    return f"{counted(n, 'lease')} of {worker} ended"


async def ask_free_worker(call: Call) -> Question:
    """How many messages it holds."""
    worker = call.need("worker")
    rows = await call.client.list_workers(connection=call.connection)
    n = sum(row.held for row in rows if row.worker == worker)
    return Question(
        f"End the leases of {worker}? It holds {messages(n)}, which others get at once. If it is alive, its"
        " answers are refused.",
        "End its leases",
        {"worker": worker},
    )


async def end_session(call: Call) -> str:
    """End a session that is in the way."""
    pid, began_at = _session(call)
    has_ended = await call.client.end_session(pid, began_at, connection=call.connection)
    return f"Process {pid} {'has ended' if has_ended else 'was told to end, and has not yet'}"


async def ask_end_session(call: Call) -> Question:
    """Which session, and what is lost."""
    pid, began_at = _session(call)
    found = await call.client.diagnose(1, areas=HOLDERS, connection=call.connection)
    said = [row.finding for row in found if row.session == (pid, began_at)]
    why = f"{said[0][:1].upper()}{said[0][1:]}." if said else "It is in nobody's way any more."
    return Question(
        f"End the session of process {pid}? {why} What it has open is rolled back; a program connects anew.",
        "End the session",
        {"pid": pid, "began_at": began_at.isoformat()},
        is_possible=bool(said),
    )


def _session(call: Call) -> tuple[int, datetime]:
    pid, began_at = whole(call.given, "pid"), moment(call.given, "began_at")
    if pid is None or began_at is None:
        raise InvalidArgument("a session is said by pid and began_at")
    return pid, began_at


def _until(until: Any) -> str:
    return f" until {until:%Y-%m-%d %H:%M} UTC" if until is not None else ""


ACTS: Final[dict[str, Callable[[Call], Awaitable[str]]]] = {
    each.__name__: each
    for each in (
        pause_subscription,
        resume_subscription,
        pause_queue,
        resume_queue,
        pause_lane,
        resume_lane,
        pause_schedule,
        resume_schedule,
        pause_pipeline,
        resume_pipeline,
        run_pipeline,
        cancel_pipeline,
        resend_quarantine,
        tick,
        publish,
        run_schedule,
        start_sweep,
        stop_sweep,
        cancel,
        requeue,
        purge,
        seek,
        free_worker,
        end_session,
    )
}
QUESTIONS: Final[dict[str, Callable[[Call], Awaitable[Question]]]] = {
    "cancel_pipeline": ask_cancel_pipeline,
    "cancel": ask_cancel,
    "run_schedule": ask_run_schedule,
    "start_sweep": ask_start_sweep,
    "requeue": ask_requeue,
    "purge": ask_purge,
    "seek": ask_seek,
    "free_worker": ask_free_worker,
    "end_session": ask_end_session,
}


async def ask(desk: Desk, request: Request) -> Response:
    """The question before an act, with the count."""
    verb = str(request.path_params["verb"])
    if verb not in QUESTIONS:
        raise HTTPException(404)
    async with _questions.turn(), desk.database.reading(PATIENT_WITHIN) as connection:
        call = Call(desk.database.client, connection, request.query_params, desk.hidden)
        question = await QUESTIONS[verb](call)
    back = _back(request, request.query_params)
    return desk.page(request, "ask.html", verb=verb, question=question, back=back)


async def do(desk: Desk, request: Request) -> Response:
    """An act; then the page that it was asked on says what it did."""
    verb = str(request.path_params["verb"])
    if verb not in ACTS:
        raise HTTPException(404)
    form = await request.form()
    who = request.state.person.name
    async with desk.database.changing(who) as connection:
        call = Call(desk.database.client, connection, form, desk.hidden)
        said = await ACTS[verb](call)
    desk.database.forget()
    for queue, id in call.started:
        sweeping.carry(desk.database, queue, id, who)
    back = _back(request, form)
    return RedirectResponse(f"{back}{'&' if '?' in back else '?'}{asking(said=said)}", 303)


def _back(request: Request, given: QueryParams | FormData) -> str:
    """The page of ours that it was asked on, without what it said before."""
    root = root_of(request)
    back = str(given.get("back", ""))
    parts = urlsplit(back)
    ours = parts.path.startswith(f"{root}/") and not back.startswith("//") and "\\" not in back
    if not ours or parts.scheme or parts.netloc:
        return f"{root}/"
    kept = "&".join(each for each in parts.query.split("&") if each and not each.startswith("said="))
    return f"{parts.path}?{kept}" if kept else parts.path
