"""Movers: the messages of a stream, published into other queues, also of another database, exactly once.

split      which queue a message goes to
rows       the messages of a batch, from one database into the other
process    a process that moves batch after batch
"""

from trunq.process.mover.process import Mover, Statistics, TargetNotFound
from trunq.process.mover.split import Split, split_by

__all__ = ["Mover", "Split", "Statistics", "TargetNotFound", "split_by"]
