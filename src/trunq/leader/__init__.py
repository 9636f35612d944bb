"""The leader: one process at a time performs the duties.

election   which process leads, and for how long
line       duties that take turns on a connection
duty       what there is to do, for each queue or for all of them
pulse      what it did in the last so many seconds, as a line of the log
schedule   when the next schedule is due, and the times of cron texts
several    one process that leads several databases
"""

from trunq.leader.election import Leader
from trunq.leader.line import Performed
from trunq.leader.several import Leaders

__all__ = ["Leader", "Leaders", "Performed"]
