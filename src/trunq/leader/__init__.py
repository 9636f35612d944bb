"""The leader: one process at a time performs the duties.

election   which process leads, and for how long
duty       what there is to do, for each queue or for all of them
schedule   when the next schedule is due, and the times of cron texts
"""

from trunq.leader.election import Leader, Performed

__all__ = ["Leader", "Performed"]
