"""How every part of trunq reaches its database.

address    where it is, by the settings, and the time-outs every connection gets
pool       psycopg's pools, for event loops that end
home       the event loop that a client's pool lives in
fork       what a forked child must leave alone
session    what is done with a connection once it is there
backoff    which errors are retryable, and when: the one policy
idle       whether a connection is free for a statement, or a COPY on it is open
silence    connections that notice when nothing comes any more
outage     what is said of a database that is away
given      what a caller passes as connection=
ear        how a task, or a thread, waits for something to read
_async     opening a connection, one that notices silence, a link, which comes back, and the one listener;
           _sync is generated from it
"""
