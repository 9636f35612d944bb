"""The events of OpenLineage, as its own package has them, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, RunEvent, RunState
from openlineage.client.event_v2 import Run as RunOf
from openlineage.client.facet_v2 import (
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport
from openlineage.client.transport.transport import Transport
from openlineage.client.uuid import generate_new_uuid

from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.lineage.dataset import name_of
from trunq.pipeline.redact import redact
from trunq.settings import Lineage as Wanted

PRODUCER: Final = "https://pypi.org/project/trunq"


class Events:
    """Makes events, and sends them."""

    def __init__(self, wanted: Wanted, dsn: str) -> None:
        self._namespace, self._dsn = wanted.namespace, dsn
        # What stands before an @ may be a password.
        self.where = str(wanted.file) if wanted.url is None else wanted.url.rpartition("@")[2]
        self._transport = _transport(wanted)

    def one(self, pipeline: Pipeline, run: Run) -> One:
        """The events of one attempt at a run."""
        return One(pipeline, run, self._namespace, self._dsn)

    def send(self, event: RunEvent) -> None:
        """Raises what the place raises."""
        self._transport.emit(event)


class One:
    """The events of one attempt at a run: each has an id of its own, as a run of lineage ends once."""

    def __init__(self, pipeline: Pipeline, run: Run, namespace: str, dsn: str) -> None:
        self._pipeline, self._run, self._dsn = pipeline, run, dsn
        self._id = str(generate_new_uuid())
        facet = job_type_job.JobTypeJobFacet("BATCH", "TRUNQ", "PIPELINE", producer=PRODUCER)
        self._job = Job(namespace, run.pipeline, {"jobType": facet})

    def started(self) -> RunEvent:
        """START."""
        return self._event("START", {}, None)

    def ended(
        self, state: str, answer: Mapping[str, Any] | None = None, error: str | None = None
    ) -> RunEvent:
        """The end: its rows and the columns of the sink, or its error."""
        return self._event(state, answer or {}, error)

    def _event(self, state: str, answer: Mapping[str, Any], error: str | None) -> RunEvent:
        facets: dict[str, Any] = {}
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                error, "python", producer=PRODUCER
            )
        return RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            run=RunOf(self._id, facets),
            job=self._job,
            eventType=RunState[state],
            inputs=[self._source(answer.get("rows_in"))],
            outputs=[self._sink(answer.get("rows_out"))],
        )

    def _source(self, rows: int | None) -> InputDataset:
        namespace, name = self._named(self._pipeline.source)
        if rows is None:
            return InputDataset(namespace, name)
        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rows, producer=PRODUCER)
        return InputDataset(namespace, name, inputFacets={"inputStatistics": read})

    def _sink(self, rows: int | None) -> OutputDataset:
        namespace, name = self._named(self._pipeline.sink)
        facets: dict[str, Any] = {}
        if columns := self._run.figures.columns:
            fields = [schema_dataset.SchemaDatasetFacetFields(*each) for each in columns.items()]
            facets["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)
        if rows is None:
            return OutputDataset(namespace, name, facets=facets)
        size = self._run.figures.bytes_out or None
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rows, size, producer=PRODUCER
        )
        return OutputDataset(namespace, name, facets=facets, outputFacets={"outputStatistics": written})

    def _named(self, part: Any) -> tuple[str, str]:
        namespace, name = name_of(part, self._dsn)
        return redact(self._pipeline, namespace), redact(self._pipeline, name)


def _transport(wanted: Wanted) -> Transport:
    if wanted.url is None:
        return FileTransport(FileConfig(str(wanted.file), append=True))
    config = HttpConfig(wanted.url, timeout=wanted.timeout, retry={"total": 0})
    if wanted.api_key is not None:
        config.auth = ApiKeyTokenProvider({"api_key": wanted.api_key})
    return HttpTransport(config)
