"""Workers on a Spark cluster: each task of one long job is a worker of trunq.

    from trunq import spark

    workers = spark.spread("shop:worker", spark.session(master="spark://host:7077"), until_empty=True)
    print(workers.wait())

Who gets which message, in which order, and what becomes of those of a worker that dies, is the queue's
affair, as with workers anywhere. Spark brings the processes: it starts them where there are cores, and again
where an executor was lost.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from trunq import errors
from trunq.connection.address import address
from trunq.errors import TrunqError
from trunq.explanation import explain_spark
from trunq.spark.errors import SparkError
from trunq.spark.launch.cluster import is_local
from trunq.spark.launch.session import register
from trunq.spark.launch.session import session as new_session
from trunq.wire.scalar import seconds
from trunq.worker import Statistics
from trunq.worker.executor.line import Exchange, Failure, Member
from trunq.worker.executor.serve import Ended, Plan, serve
from trunq.worker.executor.ship import ship

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("trunq.worker")

OPTIONS: Final = frozenset(
    (
        *("queues", "subscription", "dsn", "name", "concurrency", "prefetch", "max_connections", "notify"),
        *("poll", "lease_time", "reserve", "grace", "lead", "until_empty", "until_idle"),
        *("unknown_kinds", "shuffle", "public_ids", "asks"),
    )
)
"""Attributes of a Worker that may be given for all of them."""

TRIES: Final = 64
"""How often Spark starts a worker again whose process or executor was killed. (What keeps a worker from
working is told at once, and ends all of them.)
"""

PORT: Final = "spark.trunq.port"
"""Setting of the session: the port at which workers call the driver. 0, the default: any."""

_EXECUTORS: Final = 60.0
"""Seconds to wait for the first executor."""
_SETTLED: Final = 3.0
"""Seconds without another executor, after which all there are have come."""
_SAID: Final = 30.0
"""Seconds between two lines about what was done."""
_LATE: Final = 10.0
"""Seconds that Spark has, after the grace of the workers, until their tasks are killed."""


class Spread:
    """Workers that run on executors; `spread` starts them."""

    def __init__(self, context: SparkContext, app: str, tasks: int, options: dict[str, Any]) -> None:
        conf = context.getConf()
        host = str(conf.get("spark.driver.host"))
        bind = str(conf.get("spark.driver.bindAddress", host))
        self.tasks = tasks
        """How many there are to be at a time."""
        self._context = context
        self._grace = seconds("grace", options.get("grace"))
        self._exchange = Exchange(bind, host, int(str(conf.get(PORT, "0"))), self._fail)
        level = logging.INFO if log.isEnabledFor(logging.DEBUG) else logging.WARNING
        has_address = options.pop("dsn", None) is not None
        self._plan = Plan(app, ship(context, app), options, has_address, self._exchange.number, level)
        self._group = f"trunq-{secrets.token_hex(8)}"
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name="trunq-spread", daemon=True).start()
        threading.Thread(target=self._speak, name="trunq-spread-pulse", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether all of them have ended."""
        return self._over.is_set()

    @property
    def members(self) -> list[Member]:
        """The workers that there were, with host, process and what each has done."""
        return list(self._exchange.members.values())

    @property
    def by_host(self) -> dict[str, int]:
        """How many messages were handled on each host."""
        hosts: dict[str, int] = {}
        for member in self.members:
            hosts[member.host] = hosts.get(member.host, 0) + member.statistics.get("handled", 0)
        return hosts

    @property
    def statistics(self) -> Statistics:
        """What all of them have done; of one that was killed, as far as it said, up to a second before."""
        total = Statistics()
        for member in self.members:
            for each in fields(Statistics):
                done, so_far = member.statistics.get(each.name, 0), getattr(total, each.name)
                # Each of them counts all that waits for want of a handler.
                setattr(total, each.name, max(so_far, done) if each.name == "unhandled" else so_far + done)
        return total

    def stop(self) -> None:
        """Have them lease no more, finish what runs, within their grace, and end. From any thread."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._exchange.stop()
        if self._grace is not None:
            # A daemon: a process whose workers have ended does not stay until their grace is over.
            late = (self._grace + _LATE,)
            threading.Thread(target=self._kill_late, args=late, name="trunq-spread-late", daemon=True).start()

    def cancel(self) -> None:
        """Have Spark kill them; what they held comes back when their leases end."""
        self._stopping.set()
        self._exchange.stop()
        if not self.is_over:
            self._context.cancelJobGroup(self._group)

    def wait(self, timeout: float | None = None) -> Statistics:
        """Wait until all have ended; what they have done. Raises what kept them from working, TimeoutError
        after `timeout` seconds.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"the workers still run after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self.statistics

    def _work(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"trunq workers of {self._plan.app}")
            numbers = self._context.parallelize(range(self.tasks), self.tasks)
            for ended in numbers.mapPartitionsWithIndex(partial(serve, self._plan)).collect():
                self._note(ended)
        except Exception as error:
            if self._error is None and not self._stopping.is_set():
                self._error = SparkError(f"the workers' job ended: {explain_spark(error).line}")
                self._error.__cause__ = error
        finally:
            self._exchange.close()
            self._over.set()

    def _note(self, ended: Ended) -> None:
        """What a worker had done in the end: its last words may still be on their way."""
        member = Member(ended.host, ended.process, ended.statistics, is_running=False)
        self._exchange.members[ended.worker] = member

    def _fail(self, host: str, failure: Failure) -> None:
        """A worker cannot work, nor could others: end all."""
        if self._error is None:
            self._error = _error_of(host, failure)
            self.stop()

    def _kill_late(self, seconds: float) -> None:
        if not self._over.wait(seconds):
            log.error("the grace of the workers is over by %g s: Spark kills their tasks", _LATE)
            self.cancel()

    def _speak(self) -> None:
        """Say now and then what was done where."""
        before, said_at = self.by_host, monotonic()
        while not self._over.wait(_SAID):
            now = self.by_host
            done = {host: count - before.get(host, 0) for host, count in now.items()}
            running = sum(member.is_running for member in self.members)
            if any(done.values()):
                told = ", ".join(f"{host} {count:,}" for host, count in sorted(done.items()))
                took = monotonic() - said_at
                log.info("in %.0f s: %s handled; %s workers run", took, told, running, extra=done)
            before, said_at = now, monotonic()


def spread(
    app: str,
    session: SparkSession | None = None,
    *,
    tasks: int | None = None,
    py_files: Sequence[str] = (),
    **options: Any,
) -> Spread:
    """Start workers on a Spark cluster, a task each: that of MODULE:NAME, which executors import.

    `session` is a classic one, or that of the settings. Without `tasks`, there are as many workers as
    executors have cores. `options` are arguments of `Worker`, which overrule those in your code. With a
    `name`, a number follows it, another one each time that Spark starts a worker. The module, with the
    package that it is in, goes to the executors, and so do `py_files`; what is installed must be there.
    The address of the database travels with the tasks, unless your Worker has one of its own.

    Raises TypeError for an unknown option. A queue that does not exist, and the like, is raised by
    `wait`.
    """
    if unknown := options.keys() - OPTIONS:
        raise TypeError(
            f"workers on Spark have no option {min(unknown)}: there are {', '.join(sorted(OPTIONS))}"
        )
    session = register(session) if session is not None else new_session()
    context = session.sparkContext
    if known := address(options.get("dsn")):
        context.environment["TRUNQ_DSN"] = known
    for file in py_files:
        context.addPyFile(file)
    wanted = _cores(context) if tasks is None else tasks
    if wanted < 1:
        raise ValueError(f"tasks must be at least 1, not {wanted}")
    started = Spread(context, app, wanted, {k: v for k, v in options.items() if v is not None})
    log.info("starts %s workers of %s on %s", wanted, app, context.master, extra={"workers": wanted})
    return started


def _cores(context: SparkContext) -> int:
    """As many as executors have, once all have come."""
    per_task = int(str(context.getConf().get("spark.task.cpus", "1")))
    if is_local(str(context.master)):
        return max(1, context.defaultParallelism // per_task)
    since, seen, began = monotonic(), 0, monotonic()
    while seen == 0 or monotonic() - since < _SETTLED:
        if (there := _executors(context)) != seen:
            since, seen = monotonic(), there
        if seen == 0 and monotonic() - began > _EXECUTORS:
            raise SparkError(
                f"no executor of {context.master} came within {_EXECUTORS:g} s",
                "has the cluster free cores and memory for spark.executor.cores and spark.executor.memory?",
            )
        sleep(0.1)
    # With one core altogether, Spark says 2.
    return max(seen, context.defaultParallelism // per_task)


def _executors(context: SparkContext) -> int:
    # The driver is among them.
    infos = context._jsc.sc().statusTracker().getExecutorInfos()
    return len(infos) - 1


def _error_of(host: str, failure: Failure) -> TrunqError:
    kind = vars(errors).get(failure.kind)
    if isinstance(kind, type) and issubclass(kind, TrunqError):
        return kind(failure.message, failure.hint)
    return SparkError(f"a worker on {host} cannot work: {failure.kind}: {failure.message}", failure.hint)
