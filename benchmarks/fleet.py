"""A fleet that leases one message at a time on one subscription, against the classic table with SKIP LOCKED.

Leases of a subscription take turns: each holds its lock from before it reads the position to the end of its
transaction, which does not wait for the disk. Claims with SKIP LOCKED take no turns, but each passes over the
rows that the others hold. Both sides are measured by pgbench, whose clients are workers that do nothing but
lease (or claim) and ack (or delete), each in transactions as a worker makes them, and so leave most of the machine to
the server. Where the workers wait is sampled from pg_stat_activity while they run, in rounds of their own: the
sampling takes part of the machine.
"""

from __future__ import annotations
