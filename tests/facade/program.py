"""A program written for PgQ, with Debian's python3-pgq: `python3 program.py KIND CONFIG [--register ...]`.

It knows nothing of trunq. Events whose data says so are sent back once; one of the type "stop" ends it. What
it was given goes into the table `seen`, where its kind does its work.
"""

import sys

import pgq
import pgq.cascade.consumer
import pgq.cascade.worker
import psycopg2

REMOTE = (pgq.RemoteConsumer, pgq.SerialConsumer)
NOTE = "insert into seen (consumer, id, type, data, extra1, retry) values (%s, %s, %s, %s, %s, %s)"


class Noting:
    """What all kinds have in common."""

    def note(self, curs, ev):
        curs.execute(NOTE, [self.job_name, ev.id, ev.type, ev.data, ev.extra1, ev.retry])
        if ev.type == "stop":
            self.stop()


class Consumer(Noting, pgq.Consumer):
    def process_event(self, db, event):
        if event.data == "again" and event.retry is None:
            event.tag_retry(0)
            return
        self.note(db.cursor(), event)


class CoopConsumer(Noting, pgq.CoopConsumer):
    def process_event(self, db, event):
        if event.type == "freeze" and self.job_name == event.extra1:
            sys.stdin.read()  # until it is killed
        self.note(db.cursor(), event)


class LocalConsumer(Noting, pgq.LocalConsumer):
    def process_local_event(self, db, _batch_id, event):
        self.note(db.cursor(), event)


class Elsewhere(Noting):
    def process_remote_batch(self, _db, _batch_id, event_list, dst_db):
        for event in event_list:
            self.note(dst_db.cursor(), event)


class RemoteConsumer(Elsewhere, pgq.RemoteConsumer):
    pass


class SerialConsumer(Elsewhere, pgq.SerialConsumer):
    pass


class Mover(pgq.SerialConsumer):
    """Copies all events into a queue of the other database."""

    def queue_of(self, _event):
        return "moved"

    def process_remote_batch(self, _db, _tick_id, event_list, dst_db):
        fields = ["time", "type", "data", "extra1", "extra2", "extra3", "extra4"]
        rows = {}
        for event in event_list:
            rows.setdefault(self.queue_of(event), []).append([getattr(event, field) for field in fields])
        for queue, copied in rows.items():
            pgq.bulk_insert_events(dst_db.cursor(), copied, fields, queue)


class Splitter(Mover):
    """Copies each into the queue that it names."""

    def queue_of(self, event):
        return event.extra1


class Cascaded(Noting):
    """Notes each event in the transaction in which it counts as done; the cascade's own go to PgQ."""

    def process_remote_event(self, src_curs, dst_curs, ev):
        if ev.type.startswith("pgq."):
            super().process_remote_event(src_curs, dst_curs, ev)
        else:
            self.note(dst_curs, ev)


class CascadedWorker(Cascaded, pgq.cascade.worker.CascadedWorker):
    def connection_hook(self, dbname, db):
        if dbname == "node_db":  # as Londiste does: a branch takes events from its worker alone
            db.cursor().execute("set session_replication_role = 'replica'")
            db.commit()


class CascadedConsumer(Cascaded, pgq.cascade.consumer.CascadedConsumer):
    pass


def produce(dsn):
    """As a publisher does: events one by one, and many by COPY into the current table."""
    with psycopg2.connect(dsn) as db:
        curs = db.cursor()
        print(pgq.insert_event(curs, "jobs", "one", "by insert_event", "x1", "x2", "x3", "x4"))
        rows = [["many", "by bulk_insert_events", str(n)] for n in range(3)]
        pgq.bulk_insert_events(curs, rows, ["type", "data", "extra1"], "jobs")


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind == "produce":
        produce(*arguments)
    elif kind.startswith("Cascaded"):
        globals()[kind]("program", "node_db", arguments).start()
    else:
        databases = ["src_db"] + (["dst_db"] if issubclass(globals()[kind], REMOTE) else [])
        globals()[kind]("program", *databases, arguments).start()
