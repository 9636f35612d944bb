"""The leader: one process at a time performs the duties.

election   which process leads, and for how long
duty       what there is to do, for each queue or for all of them
"""

from trunq.leader.election import Leader, Performed, own_name

__all__ = ["Leader", "Performed", "own_name"]
