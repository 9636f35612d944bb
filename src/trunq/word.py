"""The words that SQL has (ground/outcome.sql), as types for signatures and choices; a test compares."""

from __future__ import annotations

from typing import Final, Literal, get_args

State = Literal[
    "scheduled", "ready", "leased", "retrying", "parked", "done", "outdated", "dead", "replaced", "purged"
]
"""Where a message is, as one shared subscription sees it."""

Open = Literal["scheduled", "ready", "leased", "retrying", "parked"]
"""States in which it may still be handed out."""

Outcome = Literal[
    "success",
    "failed",
    "timed_out",
    "rejected",
    "released",
    "parked",
    "lease_expired",
    "expired",
    "cancelled",
    "replaced",
    "outdated",
]
"""How one attempt ended."""

Reason = Literal["cancelled", "expired", "lease_expired", "max_attempts", "rejected"]
"""Why it is dead."""

RoleName = Literal["publisher", "worker", "reader", "admin"]
"""What somebody may do with a queue."""

Mode = Literal["shared", "exclusive"]
"""How a subscription is read."""

Start = Literal["latest", "earliest"]
"""Where a subscription begins."""

Backoff = Literal["constant", "linear", "exponential"]
"""How delays between attempts grow."""

Lanes = Literal["priority", "key", "kind", "priority,key", "priority,kind"]
"""What of a message is its lane."""

LanePolicy = Literal["fair", "priority", "ranked"]
"""Which lane comes first."""

UniquePolicy = Literal["refuse", "replace"]
"""What a queue does with a message whose unique key another holds."""

UniqueOn = Literal["content"]
"""What is the unique key of each message of a queue that gives none."""

OnConflict = Literal["refuse", "replace", "raise"]
"""What one publish does with it."""

UniqueUntil = Literal["leased", "done"]
"""How long a message holds its key."""

Missed = Literal["skip", "one", "all"]
"""What to do with times that are over when somebody fires again."""

Overlap = Literal["allow", "skip"]
"""What to do when the message before is not finished."""

CaptureFormat = Literal["plain", "debezium"]
"""How a change of a row is written."""

Change = Literal["insert", "update", "delete", "truncate"]
"""What happens to a row, or a table."""

WebhookScheme = Literal["plain", "github", "stripe", "slack", "standard", "shopify", "meta"]
"""How a request is signed."""

WebhookBody = Literal["json", "bytes"]
"""What a request becomes: a payload, or bytes as they came."""

BatchLeft = Literal["finish", "give_back"]
"""What becomes of the batch of a member who leaves."""

Bell = Literal["held", "publisher", "sleeper"]
"""Who has the bell of a queue."""

LastWord = Literal["drained", "killed"]
"""What a worker says at its end: what it had was finished, or it was ended before."""

WorkerState = Literal["running", "drained", "killed", "lost"]
"""Of a worker, by what it said last; lost: it has said nothing for thirty seconds."""

Severity = Literal["error", "warning", "unseen"]
"""How bad a finding of `trunq.diagnose` is; unseen: the role may not look."""

Resumption = Literal["resumed", "noted", "repeated"]
"""What a call that resumes a parked message did."""

SweepAct = Literal["requeue", "purge", "cancel"]
"""What a sweep does with the messages that its filter finds."""

SweepState = Literal["running", "finished", "stopped", "dropped", "refused"]
"""How far a sweep is; dropped: what it was about is gone; refused: who asked has no right any more."""

Verb = Literal[
    "publish",
    "publish_many",
    "publish_unique",
    "lease",
    "lease_ids",
    "ack",
    "retry",
    "time_out",
    "reject",
    "release",
    "extend",
    "set_progress",
    "next_batch",
    "finish_batch",
]
"""What is a function of its own for every queue: its hot path."""

VERBS: Final[frozenset[str]] = frozenset(get_args(Verb))

OPEN: Final[frozenset[str]] = frozenset(get_args(Open))
