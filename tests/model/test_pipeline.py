"""Pipelines against their model: whatever changes, dies, meets or is told, each sink has what was read, once.

The model knows which versions of rows were committed when a slice was planned, and which rows there were when
an attempt read them. What an attempt brings follows: the rows that were there, of versions that the slice has
and the position of the pipeline had not. A sink has that of the attempts that were committed, in their order:

* append: each of these versions, once;
* upsert: of each key the newest; so the rows of the source, and those deleted after they were read;
* history: each version until the next one begins, so without gap or overlap; the newest has no end.

TRUNQ_TEST_EXAMPLES says how many sequences there are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from calling import new_names
from conftest import Connect
from model.machine import run_machine
from pipeline.baton import Execution, Killed, points
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.control import Asked, Run
from trunq.pipeline.errors import Wait
from trunq.pipeline.run import Executor

EXAMPLES = int(os.environ.get("TRUNQ_TEST_EXAMPLES", "8"))

KEYS = (1, 2, 3, 4)
WRITERS = (0, 1, 2)
"""The first one commits each statement."""

MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"key": ["id"], "newest": "v"},
    "history": {"key": ["id"], "newest": "at"},
}

Versions = frozenset[int]

modes = st.sampled_from(list(MODES))
keys = st.sampled_from(KEYS)
writers = st.sampled_from(WRITERS)
chosen = st.integers(0, 5)


@dataclass
class Slice:
    """Versions that were committed at both ends of it; of a backfill, keys."""

    after: Versions = frozenset()
    until: Versions = frozenset()
    keys: range | None = None

    def of(self, rows: dict[int, int]) -> dict[int, int]:
        """What it has of the rows that are there."""
        if self.keys is not None:
            return {key: version for key, version in rows.items() if key in self.keys}
        return {key: v for key, v in rows.items() if v in self.until and v not in self.after}


@dataclass
class Moved:
    """One pipeline: where it stands, its slices by run, what attempts read, and what its sink is to have."""

    name: str
    mode: str
    position: Versions = frozenset()
    slices: dict[int, Slice] = field(default_factory=dict)
    read: dict[int, dict[int, int]] = field(default_factory=dict)
    taken: set[tuple[str, int]] = field(default_factory=set)
    rows: Counter[tuple[int, int]] = field(default_factory=Counter)
    newest: dict[int, int] = field(default_factory=dict)
    versions: dict[int, list[int]] = field(default_factory=dict)
    messages: list[Asked] = field(default_factory=list)
    saved: list[tuple[dict[str, Any], Versions]] = field(default_factory=lambda: [({}, frozenset())])
    is_paused: bool = False
    was_reset: bool = False
    skipped: set[int] = field(default_factory=set)
    """Versions that may be missing."""
    overruled: set[int] = field(default_factory=set)
    """Runs that were given up before the state was set: they move it no more."""

    @property
    def table(self) -> str:
        return f"sink_{self.name}"

    def take(self, run: Run) -> None:
        """The sink has committed an attempt; 0: that the run brings nothing."""
        assert (run.mark, run.number) not in self.taken, "two attempts at one run are in the sink"
        self.taken.add((run.mark, run.number))
        if not run.attempt:
            return
        for key, version in self.read[run.attempt].items():
            self.rows[key, version] += 1
            self.newest[key] = max(version, self.newest.get(key, 0))
            versions = self.versions.setdefault(key, [])
            if not versions or versions[-1] < version:
                versions.append(version)
        if not run.backfill and run.run_id not in self.overruled:
            self.position = self.slices[run.run_id].until


class PipelineMachine(RuleBasedStateMachine):
    def __init__(self, bench: Bench, connect: Connect) -> None:
        super().__init__()
        self.bench = bench
        self.source = next(new_names("source"))
        self.look = connect()
        self.look.execute(
            f"create table {self.source} (id int primary key, v int, at timestamptz not null)".encode()
        )
        self.connections = [connect(autocommit=writer == 0) for writer in WRITERS]
        self.held: list[set[int]] = [set() for _ in WRITERS]
        self.pending: list[set[int]] = [set() for _ in WRITERS]
        self.committed: set[int] = set()
        self.version = self.columns = 0
        self.executions: list[tuple[Moved, Execution]] = []
        self.alone: dict[Execution, bool] = {}
        self.moved = {mode: self.make(mode) for mode in MODES}
        self.points = points(self.hear)
        self.points.__enter__()

    def make(self, mode: str) -> Moved:
        name = next(new_names("pipe"))
        source = {"format": "table", "table": self.source}
        sink = {"format": "table", "table": f"sink_{name}", "mode": mode, **MODES[mode]}
        return Moved(self.bench.make(source, sink, name=name), mode)

    # The source.

    def next_version(self, writer: int) -> int:
        self.version += 1
        self.pending[writer].add(self.version)
        return self.version

    def write(self, writer: int, key: int, kind: str) -> None:
        if any(key in held for other, held in enumerate(self.held) if other != writer):
            return  # it would wait
        v, run = self.next_version(writer), self.connections[writer].execute
        if kind == "delete":
            run(f"delete from {self.source} where id = %s".encode(), [key])
        else:
            run(
                f"insert into {self.source} (id, v, at)"
                " values (%s, %s, '2030-01-01Z'::timestamptz + %s * interval '1 s')"
                " on conflict (id) do update set v = excluded.v, at = excluded.at".encode(),
                [key, v, v],
            )
        if writer:
            self.held[writer].add(key)
        else:
            self.end_writing(0, commits=True)

    @rule(writer=writers, key=keys, kind=st.sampled_from(["put", "put", "put", "delete"]))
    def change(self, writer: int, key: int, kind: str) -> None:
        self.write(writer, key, kind)

    @rule(writer=st.sampled_from(WRITERS[1:]), key=keys, keeps=st.booleans())
    def change_in_savepoint(self, writer: int, key: int, keeps: bool) -> None:
        self.connections[writer].execute("savepoint s")
        self.write(writer, key, "put")
        self.connections[writer].execute("release savepoint s" if keeps else "rollback to savepoint s")

    @rule(writer=st.sampled_from(WRITERS[1:]), commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        if commits:
            self.connections[writer].commit()
            self.committed |= self.pending[writer]
        else:
            self.connections[writer].rollback()
        self.pending[writer], self.held[writer] = set(), set()

    @rule()
    def freeze(self) -> None:
        self.look.execute(f"vacuum (freeze) {self.source}".encode())

    @rule()
    def add_column(self) -> None:
        self.columns += 1
        try:
            self.look.execute("set lock_timeout = '10ms'")
            self.look.execute(f"alter table {self.source} add c{self.columns} int default 7".encode())
        except psycopg.errors.LockNotAvailable:
            pass  # a writer has it

    # Executions.

    def hear(self, execution: Execution, point: str, given: tuple[Any, ...], result: Any) -> None:
        moved = next(each for each, other in self.executions if other is execution)
        if point == "open":
            assert not (moved.is_paused and result["action"] == "plan")
        elif point == "plan":
            execution.seen["until"] = frozenset(self.committed)
        elif point == "begin" and "run_id" in (result or ()):  # not that of a sink
            if result["backfill"]:
                range_ = execution.asked.payload
                moved.slices[result["run_id"]] = Slice(keys=range(int(range_["from"]), int(range_["to"])))
            else:
                moved.slices[result["run_id"]] = Slice(moved.position, execution.seen["until"])
        elif point == "attempt":
            execution.seen["run"] = given[1].run_id
            execution.seen["attempt"] = result
        elif point == "read":
            found = moved.slices[execution.seen["run"]].of(self.rows())
            moved.read[execution.seen["attempt"]] = found
        elif point == "commit" and result:
            moved.take(given[1])

    @rule(mode=modes, old=chosen, is_attentive=st.booleans())
    def start(self, mode: str, old: int, is_attentive: bool) -> None:
        """For a new message, or one of the newest again, whose lease is lost."""
        moved = self.moved[mode]
        if old == 0 or not moved.messages:
            self.ask(moved, self.bench.client.run_pipeline(moved.name))
        self.begin(moved, moved.messages[-min(max(old, 1), len(moved.messages))], is_attentive)

    @rule(first=st.integers(1, 3), is_attentive=st.booleans())
    def backfill(self, first: int, is_attentive: bool) -> None:
        moved = self.moved["upsert"]
        payload = {"column": "id", "from": str(first), "to": str(first + 2)}
        message = self.bench.client.backfill_pipeline(moved.name, payload)
        self.begin(moved, self.ask(moved, message, payload), is_attentive)

    def ask(self, moved: Moved, message: int, payload: Any = None) -> Asked:
        moved.messages.append(Asked(moved.name, message, payload, is_backfill=payload is not None))
        return moved.messages[-1]

    def begin(self, moved: Moved, asked: Asked, is_attentive: bool) -> Execution:
        if len(self.executions) == 3:
            self.finish(0)
        made = Execution(Executor(self.bench.client, self.bench.dsn), asked, is_attentive=is_attentive)
        others = [other for each, other in self.executions if each is moved]
        self.executions.append((moved, made))
        self.alone.update(dict.fromkeys([made, *others], not others))
        return made

    @rule(which=chosen, count=st.integers(1, 9))
    def step(self, which: int, count: int) -> None:
        if self.executions:
            execution = self.executions[which % len(self.executions)][1]
            for _ in range(count):
                execution.step()
            self.judge()

    @rule(which=chosen)
    def finish(self, which: int) -> None:
        self.step(which, 200)

    @rule(which=chosen, in_commit=st.booleans())
    def kill(self, which: int, in_commit: bool) -> None:
        if self.executions:
            moved, execution = self.executions[which % len(self.executions)]
            self.alone.update({other: False for each, other in self.executions if each is moved})
            if in_commit:
                execution.dies_in_commit = True
                execution.to_end()
            else:
                execution.kill()
            self.judge()

    def judge(self) -> None:
        """Whoever was alone has a result, or waits; others may have failed, for a reason that is true."""
        for moved, execution in [pair for pair in self.executions if pair[1].is_over]:
            self.executions.remove((moved, execution))
            error, is_alone = execution.error, self.alone.pop(execution)
            if isinstance(error, Wait | Killed):
                continue
            if error is not None:
                assert isinstance(error, TrunqError), repr(error)
                assert "set back" not in str(error)
                assert not is_alone, repr(error)

    @rule()
    def end_holds(self) -> None:
        """Of whoever is at a run, time is up."""
        self.look.execute("update trunq.pipeline_run set held_until = null")

    # What people do.

    @rule(mode=modes, pauses=st.booleans())
    def pause(self, mode: str, pauses: bool) -> None:
        moved = self.moved[mode]
        if pauses:
            self.bench.client.pause_pipeline(moved.name)
        else:
            assert self.bench.client.resume_pipeline(moved.name) == moved.is_paused
        moved.is_paused = pauses

    @rule(mode=modes)
    def cancel(self, mode: str) -> None:
        moved = self.moved[mode]
        if self.bench.client.cancel_pipeline(moved.name):
            self.alone.update({other: False for each, other in self.executions if each is moved})

    @rule(mode=modes)
    def skip(self, mode: str) -> None:
        moved = self.moved[mode]
        if (skipped := self.bench.client.skip_pipeline(moved.name)) is None:
            return
        slice = moved.slices[self.run_ids(moved, "number = %s", skipped["number"])[0]]
        moved.skipped |= slice.until - slice.after
        moved.position = slice.until
        self.alone.update({other: False for each, other in self.executions if each is moved})

    def run_ids(self, moved: Moved, which: str, *values: Any) -> list[int]:
        query = (
            "select run_id from trunq.pipeline_run join trunq.pipeline p using (pipeline_id)"
            f" where p.name = %s and backfill = 0 and {which}"
        )
        return [id for (id,) in self.look.execute(query.encode(), [moved.name, *values]).fetchall()]

    @rule(mode=modes)
    def save_state(self, mode: str) -> None:
        moved = self.moved[mode]
        if self.is_quiet(moved):
            moved.saved.append((self.told(moved)[0], moved.position))

    @rule(mode=modes, which=chosen)
    def set_state(self, mode: str, which: int) -> None:
        moved = self.moved[mode]
        state, position = moved.saved[which % len(moved.saved)]
        try:
            self.bench.client.set_pipeline_state(moved.name, state)
        except InvalidPipeline:
            assert not self.is_quiet(moved)
        else:
            assert self.is_quiet(moved)
            moved.position, moved.was_reset = position, True
            moved.overruled |= {*self.run_ids(moved, "not is_settled")}

    def is_quiet(self, moved: Moved) -> bool:
        return self.told(moved)[1] is None

    def told(self, moved: Moved) -> tuple[dict[str, Any], int | None]:
        query = b"select state, open_run from trunq.list_pipelines() where pipeline = %s"
        row = self.look.execute(query, [moved.name]).fetchone()
        assert row is not None
        return row[0], row[1]

    # What is to hold.

    def rows(self) -> dict[int, int]:
        return dict(self.look.execute(f"select id, v from {self.source}".encode()).fetchall())

    def found(self, moved: Moved, columns: str) -> list[Any]:
        there = self.look.execute("select to_regclass(%s) is not null", [moved.table]).fetchone()
        if there is None or not there[0]:
            return []
        return self.look.execute(f"select {columns} from {moved.table}".encode()).fetchall()

    @invariant()
    def sinks_have_what_was_read(self) -> None:
        assert Counter(self.found(self.moved["append"], "id, v")) == self.moved["append"].rows
        assert dict(self.found(self.moved["upsert"], "id, v")) == self.moved["upsert"].newest
        begins = "extract(epoch from {} - '2030-01-01Z')::int"
        columns = f"id, v, {begins.format('valid_from')}, {begins.format('valid_to')}"
        expected = {
            (key, version, version, following)
            for key, versions in self.moved["history"].versions.items()
            for version, following in zip(versions, [*versions[1:], None], strict=True)
        }
        found = self.found(self.moved["history"], columns)
        assert set(found) == expected
        assert len(found) == len(expected)

    def teardown(self) -> None:
        """When all is quiet, a run or two bring what is missing, and no more."""
        try:
            self.settle()
        finally:
            for _, execution in self.executions:
                execution.kill()
            self.points.__exit__(None, None, None)
            for connection in (self.look, *self.connections):
                connection.close()

    def settle(self) -> None:
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        while self.executions:
            self.finish(0)
        self.end_holds()
        all_rows = self.rows()
        for mode, moved in self.moved.items():
            self.pause(mode, False)
            for outcome in ("done", "nothing new"):
                last = self.begin(
                    moved, self.ask(moved, self.bench.client.run_pipeline(moved.name)), is_attentive=True
                )
                last.to_end()
                assert last.result is not None, repr(last.error)
                assert last.result["outcome"] in (outcome, "nothing new")
                self.judge()
            self.sinks_have_what_was_read()
            rows = {key: version for key, version in all_rows.items() if version not in moved.skipped}
            if moved.mode == "append":
                assert moved.rows.keys() >= set(rows.items())
                assert moved.was_reset or set(moved.rows.values()) <= {1}
            assert {key: moved.newest.get(key) for key in rows} == rows
            assert all(version in self.committed for _, version in moved.rows)


@pytest.fixture
def bench(database: str, connection: psycopg.Connection[Any]) -> Iterator[Bench]:
    made = Bench(database, connection)
    yield made
    made.close()


@pytest.mark.slow
def test_pipelines_do_what_their_model_does(bench: Bench, connect: Connect) -> None:
    run_machine(lambda: PipelineMachine(bench, connect), EXAMPLES, 50)
