"""trunq: a queue and event-stream system that lives inside Postgres."""
