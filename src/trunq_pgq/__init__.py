"""PgQ's API over trunq's queues: the files in sql, which `trunq db install --facade pgq` applies."""
