"""Ranks: a function of yours says which lanes of a queue come first, and how much each may run.

    ranks = Ranks()

    @ranks.register("by_need")
    def by_need(lanes, fleet, connection):
        need = dict(connection.execute("select tenant, need from tenant").fetchall())
        return {lane: -need.get(lane.lane, 0) for lane in lanes}

A subscription names the function (`client.set_lanes("mail", policy="ranked", function="by_need")`); the
processes that have it, leaders (`trunq leader module:ranks`) and workers (`Worker(ranks=ranks)`), see to it
that one of them calls it, twice a second. What it returns is the whole order: a lane that it leaves out has
no rank. When it raises, or takes longer than its time limit, the last ranks stay, and the warnings of
`trunq status` say so.

    registry   functions by name
    order      what a function returned, checked
    ranker     calls them, and tells the database
"""

from trunq.leader.rank.order import Rank
from trunq.leader.rank.ranker import Ranker
from trunq.leader.rank.registry import Ranks

__all__ = ["Rank", "Ranker", "Ranks"]
