"""One module a page, and where each page is."""

from __future__ import annotations

from trunq.web.pages import (
    archive,
    audit,
    dead,
    doctor,
    lane,
    message,
    overview,
    pipeline,
    queue,
    schedule,
    source,
    stream,
    subscription,
    worker,
)

PAGES = (
    ("/", overview.show),
    ("/queues/{queue}", queue.show),
    ("/queues/{queue}/subscriptions/{subscription}", subscription.show),
    ("/queues/{queue}/messages", message.show_all),
    ("/queues/{queue}/messages/{id:int}", message.show),
    ("/queues/{queue}/publish", message.copy),
    ("/queues/{queue}/dead", dead.show),
    ("/queues/{queue}/lanes", lane.show),
    ("/queues/{queue}/stream", stream.show),
    ("/dead", dead.show_all),
    ("/workers", worker.show),
    ("/schedules", schedule.show_all),
    ("/schedules/{schedule:path}", schedule.show),
    ("/streams", stream.show_all),
    ("/pipelines", pipeline.show_all),
    ("/pipelines/{pipeline:path}", pipeline.show),
    ("/sources", source.show),
    ("/archives", archive.show),
    ("/audit", audit.show),
    ("/doctor", doctor.show),
)
