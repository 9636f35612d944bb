"""The runner of pipelines from the shell."""

from __future__ import annotations

from shelling import Shell


def test_a_runner_before_the_first_pipeline_hears_what_brings_its_queue(trunq: Shell) -> None:
    """A queue that somebody made by hand lacks the lanes of pipelines with `per`."""
    done = trunq("worker", "trunq.pipeline.runner:worker")
    assert done.status == 1
    assert "trunq pipeline create FILE" in done.said
    assert "trunq queue create" not in done.said
