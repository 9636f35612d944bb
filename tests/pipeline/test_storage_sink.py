"""Sinks at S3 and SFTP: whatever is killed, cut off or too late, every row arrives once."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import dataset, parquet

import scope
from pipeline import test_kill
from pipeline.attempting import Attempt, begin
from pipeline.killing import POINTS, execute_and_die, start
from pipeline.piping import Bench
from pipeline.storages import S3Server, SftpServer
from pipeline.test_frozen import frozen
from pipeline.test_protocol import ORDERS
from scope import some
from trunq.pipeline.errors import StageLost, StorageFailed
from trunq.pipeline.sink.published import PublishedSink
from trunq.pipeline.storage import split
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("_secrets")

PUBLISHED = ("copied", "emptied", "told")
"""Points of the commit of Parquet files at an object store, behind the mark."""
KINDS = {
    "s3 delta": (*(POINTS if scope.ALL else ("staging", *test_kill.OF_COMMIT)), "taken"),
    "s3 delta upsert": (*test_kill.OF_COMMIT, "taken"),
    "s3 delta apply": (*test_kill.OF_COMMIT, "taken"),
    **({"s3 delta partitions": (*POINTS, "taken")} if scope.ALL else {}),
    "s3 parquet": (*(POINTS if scope.ALL else ("staging", *test_kill.OF_COMMIT)), *PUBLISHED),
    "sftp parquet": POINTS if scope.ALL else ("staging", *test_kill.OF_COMMIT),
}
"""Of points before anything is staged, `test_kill` knows."""


@pytest.fixture
def place(
    s3: S3Server, sftp: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Sinks of `test_kill` that lie elsewhere; the address of one of a kind."""
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))

    def make(kind: str) -> str:
        where, _, rest = kind.partition(" ")
        address = f"{s3.bucket()}/a lake/moved" if where == "s3" else sftp.address(tmp_path / "moved")
        storage = s3.storage if where == "s3" else sftp.storage
        sink = {**test_kill.SINKS[rest], "path": address, "storage": storage}
        monkeypatch.setitem(test_kill.SINKS, kind, sink)
        return address

    return make


class Moving(test_kill.Moving):
    """As `test_kill` has it, with its sink elsewhere."""

    def __init__(self, bench: Bench, kind: str, address: str, s3: S3Server) -> None:
        super().__init__(bench, kind)
        self.address, self.s3 = address, s3

    def check_leftovers(self) -> None:
        round, message = self.ask()
        self.end(round, message, "last")
        if self.address.startswith("sftp"):
            assert not [*Path("moved/_trunq_stage").iterdir()]
            return
        stage = f"{self.address}/_trunq_stage"
        assert [entry.path.rpartition("/")[2] for entry in self.s3.files(stage)] == ["probe"]
        if "delta" in self.kind:
            table = DeltaTable(self.address, storage_options=self.s3.options)
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            self.check("vacuumed")

    def _read(self) -> dict[str, list[int]]:
        if self.kind == "sftp parquet":
            return {"dataset": dataset.dataset("moved", format="parquet").to_table()["id"].to_pylist()}
        if self.kind == "s3 parquet":
            return {"plain": plain_rows(self.s3, self.address)}
        table = DeltaTable(self.address, storage_options=self.s3.options)
        return {"pyarrow": table.to_pyarrow_table()["id"].to_pylist()}


def plain_rows(s3: S3Server, address: str, column: str = "id") -> list[Any]:
    """What a reader sees that passes over names beginning with _, as Spark and pyarrow do."""
    made: list[Any] = []
    root = split(address)[1]
    for entry in s3.files(address):
        if not any(name.startswith("_") for name in entry.path.removeprefix(root).split("/")):
            content = s3.open(address).read(entry.path)
            made += parquet.read_table(io.BytesIO(content))[column].to_pylist()
    return made


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_each_point_every_row_arrives_once(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    moving = Moving(bench, kind, place(kind), s3)
    for point in KINDS[kind]:
        round, message = moving.ask()
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        moving.end(round, message, point)
    moving.check_leftovers()


FROZEN = ("staging", "committing", "marked")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if scope.ALL else ["s3 delta", "s3 parquet", "sftp parquet"])
def test_one_who_was_frozen_while_others_took_its_run_changes_nothing(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    moving = Moving(bench, kind, place(kind), s3)
    for point in (*FROZEN, *(PUBLISHED if kind == "s3 parquet" else ())):
        round, message = moving.ask()
        with frozen(bench, message, point):
            moving.end(round, message, point)
            moving.end(*moving.ask(), point)
        moving.check(point)
    moving.check_leftovers()


class Meeting:
    """Attempts at the runs of a pipeline into a sink that lies elsewhere."""

    def __init__(self, bench: Bench, s3: S3Server, address: str, kind: str) -> None:
        self.bench, self.s3, self.address, self.kind = bench, s3, address, kind
        bench.sql("create table source (id int, word text, run text)")
        self.pipeline = bench.make({"format": "table", "table": "source"}, test_kill.SINKS[kind])
        self.number = 0

    def next(self, *given: tuple[str, int]) -> list[Attempt]:
        """Attempts at the next run, staged with different data."""
        self.number += 1
        made, run = begin(self.bench, self.pipeline)
        return [Attempt(self.bench, made.expanded(), run(), word, rows) for word, rows in given]

    def words(self) -> list[str]:
        if self.kind.startswith("sftp"):
            table = dataset.dataset("moved", format="parquet").to_table()
            return list(table["word"].to_pylist())
        if "parquet" in self.kind:
            return plain_rows(self.s3, self.address, "word")
        table = DeltaTable(self.address, storage_options=self.s3.options).to_pyarrow_table()
        return list(table["word"].to_pylist())


MEETING = ("s3 delta", "s3 parquet", "sftp parquet")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEETING)
def test_in_whatever_order_two_attempts_meet_the_sink_has_one_whole(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, s3, place(kind), kind)
    wanted: list[str] = []
    for order in some([("A", "A", "B", "B", "A", "B"), ("A", "B", "B", "A", "A", "B")], ORDERS):
        both = dict(zip("AB", meeting.next(("A", 3), ("B", 5)), strict=True))
        for word in order:
            next(both[word].steps)()
        # The first of those whose rows were written down that came to its commit.
        run = bench.client.list_runs(meeting.pipeline)[0]
        assert run.outcome == "done"
        (state,) = bench.sql("select state->>'by' from trunq.pipeline")[0]
        wanted += [state] * both[state].rows
        assert sorted(meeting.words()) == sorted(wanted), order


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEETING)
def test_of_two_that_commit_at_once_one_is_in_the_sink(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, s3, place(kind), kind)
    for _ in range(some(2, 6)):
        before = len(meeting.words()) if meeting.number else 0
        both = meeting.next(("A", 3), ("B", 5))
        failed: list[BaseException] = []
        at_once = threading.Barrier(2)

        def go(attempt: Attempt, at_once: Any = at_once, failed: Any = failed) -> None:
            try:
                next(attempt.steps)()
                at_once.wait(120)
                for step in attempt.steps:
                    step()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=go, args=[attempt]) for attempt in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failed
        ((state,),) = bench.sql("select state->>'by' from trunq.pipeline")
        assert len(meeting.words()) - before == {"A": 3, "B": 5}[state]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEETING)
def test_a_cancelled_run_that_is_committed_late_brings_nothing(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, s3, place(kind), kind)
    (late,) = meeting.next(("A", 3))
    next(late.steps)()
    assert bench.client.cancel_pipeline(meeting.pipeline)
    bench.sql("insert into source values (1, 'B', 'run 2')")
    bench.sql("update trunq.pipeline_run set held_until = null")
    assert bench.run(meeting.pipeline)["number"] == 2
    next(late.steps)()
    next(late.steps)()
    assert meeting.words() == ["B"]
    assert [run.outcome for run in bench.client.list_runs(meeting.pipeline)] == ["done", "cancelled"]


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost_keeps_its_files_and_counts(
    bench: Bench, s3: S3Server, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(bench, s3, place("s3 parquet"), "s3 parquet")
    original = PublishedSink._take

    def lost(self: PublishedSink, *given: Any) -> bool:
        original(self, *given)
        raise StorageFailed("the answer was lost")

    bench.sql("insert into source values (1, 'A', 'run 1')")
    monkeypatch.setattr(PublishedSink, "_take", lost)
    message = bench.client.run_pipeline(meeting.pipeline)
    with pytest.raises(StorageFailed):
        bench.execute(message)
    # Nobody has published it yet, and its attempt has not thrown it away.
    assert meeting.words() == []
    monkeypatch.setattr(PublishedSink, "_take", original)
    assert bench.execute(message)["outcome"] == "done"
    assert meeting.words() == ["A"]
    # One that arrives after its attempt has failed finds its files as well.
    late: list[Any] = []

    def gives_up(*given: Any) -> bool:
        late.append(given)
        raise StorageFailed("gave up")

    bench.sql("insert into source values (3, 'C', 'run 2')")
    monkeypatch.setattr(PublishedSink, "_take", gives_up)
    message = bench.client.run_pipeline(meeting.pipeline)
    with pytest.raises(StorageFailed):
        bench.execute(message)
    assert original(*late[0])
    monkeypatch.setattr(PublishedSink, "_take", original)
    assert bench.execute(message)["outcome"] == "done"
    assert sorted(meeting.words()) == ["A", "C"]
    # A write that is refused since a lost one of ours was first counts as taken.
    bench.sql("insert into source values (2, 'B', 'run 3')")
    monkeypatch.setattr(PublishedSink, "_take", lambda *given: original(*given) and False)
    assert bench.run(meeting.pipeline)["rows_out"] == 1
    assert sorted(meeting.words()) == ["A", "B", "C"]


@pytest.mark.slow
def test_an_entry_that_comes_late_finds_its_files(
    bench: Bench, s3: S3Server, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the log that the client gave up arrives after the attempt has failed."""
    meeting = Meeting(bench, s3, place("s3 delta"), "s3 delta")
    late: list[Any] = []

    def give_up(table: DeltaTable, *given: Any) -> None:
        late.append((table, given))
        raise StorageFailed("gave up")

    from trunq.pipeline.sink import delta  # noqa: PLC0415

    original = delta.write_entry
    monkeypatch.setattr(delta, "write_entry", give_up)
    bench.sql("insert into source values (1, 'A', 'run 1')")
    message = bench.client.run_pipeline(meeting.pipeline)
    with pytest.raises(StorageFailed):
        bench.execute(message)
    original(late[0][0], *late[0][1])
    assert meeting.words() == ["A"]
    monkeypatch.setattr(delta, "write_entry", original)
    assert bench.execute(message)["outcome"] == "done"
    assert meeting.words() == ["A"]


@pytest.mark.slow
def test_an_older_run_that_was_read_and_removed_is_not_published_again(
    bench: Bench, s3: S3Server, place: Callable[[str], str]
) -> None:
    address = place("s3 parquet")
    meeting = Meeting(bench, s3, address, "s3 parquet")
    bench.sql("insert into source values (1, 'A', 'run 1')")
    bench.run(meeting.pipeline)
    (told,) = [each.path for each in s3.files(address) if each.path.endswith("/_attempt")]
    directory = told.removesuffix("/_attempt")
    s3.open(address).remove(each.path for each in s3.files(address) if each.path.startswith(directory))
    bench.sql("insert into source values (2, 'B', 'run 2')")
    bench.run(meeting.pipeline)
    assert meeting.words() == ["B"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3 delta", "s3 delta upsert", "s3 parquet", "sftp parquet"])
def test_a_stage_that_has_lost_a_file_is_noticed(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str, tmp_path: Path
) -> None:
    address = place(kind)
    sink = test_kill.SINKS[kind]
    if "key" in sink:
        sink["key"] = ["id"]
    meeting = Meeting(bench, s3, address, kind)
    (attempt,) = meeting.next(("A", 3))
    next(attempt.steps)()
    if kind.startswith("sftp"):
        [each.unlink() for each in tmp_path.rglob("*.parquet")]
    else:
        storage = s3.open(address)
        storage.remove(each.path for each in s3.files(address) if each.path.endswith(".parquet"))
    with pytest.raises(StageLost, match=r"3 rows of run 1 .*, and 0 are there"):
        next(attempt.steps)()


@pytest.mark.slow
def test_an_address_that_is_no_url_is_where_the_table_and_its_files_are(
    bench: Bench, s3: S3Server, place: Callable[[str], str]
) -> None:
    address = f"{place('s3 delta')}/#1? ü"
    test_kill.SINKS["s3 delta"]["path"] = address
    meeting = Meeting(bench, s3, address, "s3 delta")
    bench.sql("insert into source values (1, 'A', 'run 1')")
    bench.run(meeting.pipeline)
    names = [entry.path.removeprefix(split(address)[1]) for entry in s3.files(address)]
    assert sum(name.startswith("/run-") for name in names) == 1
    assert "/_delta_log/00000000000000000000.json" in names
    table = DeltaTable(address.replace("#1? ü", quote("#1? ü")), storage_options=s3.options)
    assert table.to_pyarrow_table()["word"].to_pylist() == ["A"]


@pytest.mark.slow
def test_of_two_writers_of_one_table_no_commit_is_lost(
    bench: Bench, s3: S3Server, place: Callable[[str], str]
) -> None:
    """A pipeline, and writers that know nothing of it."""
    address = place("s3 delta")
    meeting = Meeting(bench, s3, address, "s3 delta")
    bench.sql("insert into source values (0, 'ours', 'run')")
    bench.run(meeting.pipeline)
    rounds = some(4, 20)
    row = pa.table({"id": pa.array([1], pa.int32()), "word": ["theirs"], "run": ["x"]})

    def write() -> None:
        for _ in range(rounds):
            write_deltalake(address, row, mode="append", storage_options=s3.options)

    other = threading.Thread(target=write)
    other.start()
    for number in range(rounds):
        bench.sql("insert into source values (%s, 'ours', 'run')", number)
        assert bench.run(meeting.pipeline)["rows_out"] == 1
    other.join(120)
    assert sorted(meeting.words()) == ["ours"] * (rounds + 1) + ["theirs"] * rounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3 delta", "s3 parquet"])
def test_a_server_that_is_away_for_a_while_delays_a_run(
    bench: Bench, s3: S3Server, place: Callable[[str], str], kind: str
) -> None:
    moving = Moving(bench, kind, place(kind), s3)
    _, message = moving.ask()
    s3.pause()
    try:
        process = start(bench.dsn, bench.asked(message))
        wait_until(lambda: bench.one("select count(*) from trunq.pipeline_run"))
    finally:
        s3.go_on()
    process.join(120)
    assert process.exitcode == 0
    assert bench.client.list_runs(moving.pipeline)[0].outcome == "done"
    moving.check("back")


@pytest.mark.slow
def test_an_sftp_server_that_dies_within_a_run_delays_it(
    bench: Bench, sftp: SftpServer, place: Callable[[str], str], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trunq.pipeline.sink.renamed import RenamedSink  # noqa: PLC0415

    meeting = Meeting(bench, s3, place("sftp parquet"), "sftp parquet")
    bench.sql("insert into source values (1, 'A', 'run 1')")
    original = RenamedSink._keep_only

    def dies(self: RenamedSink, *given: Any) -> None:
        original(self, *given)
        sftp.stop()

    monkeypatch.setattr(RenamedSink, "_keep_only", dies)
    message = bench.client.run_pipeline(meeting.pipeline)
    with pytest.raises(StorageFailed, match=r"pipeline moved_.*: sftp://.* does not answer"):
        bench.execute(message)
    monkeypatch.setattr(RenamedSink, "_keep_only", original)
    sftp.start()
    assert bench.execute(message)["outcome"] == "done"
    assert meeting.words() == ["A"]


@pytest.mark.slow
def test_a_run_that_an_sftp_server_renames_late_has_its_files(
    bench: Bench, sftp: SftpServer, place: Callable[[str], str], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not answer, and does it after the attempt has failed."""
    from trunq.pipeline.storage.sftp import SftpStorage  # noqa: PLC0415

    meeting = Meeting(bench, s3, place("sftp parquet"), "sftp parquet")
    late: list[Any] = []
    original = SftpStorage.rename

    def gives_up(*given: Any) -> None:
        late.append(given)
        raise StorageFailed("gave up")

    for number, word in enumerate("AB"):
        bench.sql("insert into source values (%s, %s, 'run')", number, word)
        monkeypatch.setattr(SftpStorage, "rename", gives_up)
        message = bench.client.run_pipeline(meeting.pipeline)
        with pytest.raises(StorageFailed):
            bench.execute(message)
        monkeypatch.setattr(SftpStorage, "rename", original)
        if word == "A":
            original(*late.pop())
        assert bench.execute(message)["outcome"] == "done"
        if word == "B":
            # Another attempt was first.
            with pytest.raises(OSError):
                original(*late.pop())
        assert sorted(meeting.words()) == sorted("AB"[: number + 1])
