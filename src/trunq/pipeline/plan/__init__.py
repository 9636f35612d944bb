"""What the next run of a pipeline would do, found without anything being written anywhere.

planned.py asks the database and the source, sink.py the sink.
"""

from __future__ import annotations

from trunq.pipeline.plan.planned import Planned, plan_pipeline

__all__ = ["Planned", "plan_pipeline"]
