"""A fleet on a queue with lanes that have limits, and the judge of those limits."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from chaos.fleet import Fleet
from trunq.embedded import Embedded

LANES = 8
MAX_RUNNING = 2
RATE = 15.0
BURST = 2

# Leases are made one after the other, under the lock of the subscription, and nothing else makes more
# messages run. So whoever makes one sees the most there ever are, but for answers that commit meanwhile.
JUDGE = """
create table public.running (lease_id bigint, lane text, count integer);
create function public.judge() returns trigger language plpgsql
set enable_seqscan = on set enable_bitmapscan = on as $$
begin
  insert into public.running
  select new.lease_id, g.key, count(*)
  from trunq_data.q_lease l cross join lateral unnest(l.ids, l.txids) m(id, txid)
  join trunq_log.q g on g.txid = m.txid and g.id = m.id
  where l.reaped_at is null
    and not exists (select from trunq_data.q_receipt r where r.lease_id = l.lease_id and m.id = any (r.ids))
  group by g.key;
  return null;
end $$;
create trigger judge after insert on trunq_data.q_lease
for each row when (new.size > 0) execute function public.judge();
"""

HANDED_OUT = """
select g.key, array_agg(extract(epoch from l.leased_at)::float8 order by l.leased_at)
from trunq_data.q_lease l cross join lateral unnest(l.ids, l.txids) m(id, txid)
join trunq_log.q g on g.txid = m.txid and g.id = m.id group by g.key
"""


class LanedFleet(Fleet):
    """A fleet whose queue lets so many messages of a key run at a time, and so many go out in a second."""

    def __init__(self, server: Embedded, folder: Path) -> None:
        super().__init__(server, folder, lanes="key")
        with self.connect() as connection:
            connection.execute(
                "select trunq.set_lanes('q', p_max_running => %s, p_rate => %s, p_burst => %s)",
                (MAX_RUNNING, RATE, BURST),
            )
            connection.execute(JUDGE)

    def keys(self, count: int) -> list[str | None]:
        return [f"lane {n % LANES}" for n in range(count)]

    def feed(self) -> None:
        """However slow the machine is: a worker is frozen with a lease only where there are some left."""
        if self._number("select sum(ready) from trunq.status('q')") == 0:
            self.publish(LANES)

    def check_limits(self) -> None:
        """Never was a limit exceeded by one; and each was met, or this would prove nothing."""
        with self.connect() as connection:
            most = dict(
                connection.execute("select lane, max(count) from public.running group by lane").fetchall()
            )
            assert most == {f"lane {n}": MAX_RUNNING for n in range(LANES)}
            for lane, times in connection.execute(HANDED_OUT):
                check_rate(lane, times)


def check_rate(lane: str, times: list[float]) -> None:
    """Between any two messages of a lane it handed out no more than the burst and the rate allow."""
    fullest = 0.0
    for (first, began), (last, ended) in combinations(enumerate(times), 2):
        allowed = BURST + RATE * (ended - began)
        assert last - first + 1 <= allowed + 1e-3, f"{lane}: {last - first + 1} in {ended - began} s"
        fullest = max(fullest, (last - first + 1) / allowed)
    assert fullest > 0.9, f"{lane} never came near its rate"
