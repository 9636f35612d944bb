"""What `trunq db upgrade` would do and lock: read from the catalog and the migrations that are missing."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from trunq import display
from trunq import install as installer
from trunq.cli.ground.output import say, write_json
from trunq.sql import migrations

_ALTERED = re.compile(r"\balter (?:table|domain) (?:only )?(trunq\w*\.\w+)")

_QUEUES = """
    select q.name, array(
      select t.name from unnest('{wake,put_off,keep}'::text[]) t(name)
      where not exists (
        select from pg_trigger g
        where g.tgname = t.name and g.tgrelid = format('trunq_log.%I', q.name)::regclass))
    from trunq.queue q order by q.queue_id
"""


# Of a rule or a default, the view or table that has it.
_YOURS = """
    select distinct
      format('%s %s', i.type, i.identity), split_part(split_part(used.identity, '(', 1), '.', 2),
      format('%s %s', used.type, used.identity)
    from pg_depend d
    cross join lateral pg_identify_object(d.refclassid, d.refobjid, 0) used
    left join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
    left join pg_attrdef a on d.classid = 'pg_attrdef'::regclass and a.oid = d.objid
    left join pg_constraint k on d.classid = 'pg_constraint'::regclass and k.oid = d.objid
    cross join lateral (select coalesce(r.ev_class, a.adrelid, nullif(k.conrelid, 0)) as relation) o
    cross join lateral pg_identify_object(
      case when o.relation is null then d.classid else 'pg_class'::regclass end,
      coalesce(o.relation, d.objid), 0) i
    where d.deptype in ('n', 'a') and used.schema = 'trunq' and used.type in ('function', 'table')
      and i.schema !~ '^(trunq|pg_toast)' and i.type <> 'trigger'
    order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """An upgrade to come."""

    before: int
    after: int
    migrations: list[str]
    tables: list[str]
    """What these migrations change, and so lock for a moment; of a specimen: the table of each queue."""
    functions: bool
    queues: list[str]
    """Those that are brought up to date, each in a transaction of its own."""
    logs: list[str]
    """Logs of these that lack a trigger, and are locked against publishers to make it."""
    defects: list[str]
    """What --repair puts back, as far as the functions there tell it: of all queues, then of each."""
    yours: list[str]
    """What others made that needs a function or table which these migrations name: they may replace it."""
    repairs: list[str]
    """The statement that puts back each of these; of an index, in steps that block nobody."""


def plan(dsn: str) -> Plan:
    """What an upgrade would do now. It changes nothing."""
    before = installer.version(dsn) or 0
    missing = [migration for migration in migrations() if migration.number > before]
    is_applied = installer.is_applied(dsn)
    with installer.transaction(dsn) as connection:
        found: dict[str, list[str]] = dict(connection.execute(_QUEUES.encode()).fetchall())
        text = "\n".join(migration.sql for migration in missing)
        yours = [
            f"{stranger} needs {needed}"
            for stranger, name, needed in (connection.execute(_YOURS.encode()) if missing else ())
            if re.search(rf"\b{re.escape(name)}\b", text)
        ]
        told: list[tuple[str, str]] = []
        if connection.execute("select to_regprocedure('trunq.list_defects(text)')").fetchone() != (None,):
            # Triggers and columns are made by the upgrade itself.
            told = connection.execute(
                "select d.defect, d.repair from trunq.list_defects() d"
                " where %s or d.kind not in ('column', 'trigger', 'function')",
                (is_applied,),
            ).fetchall()
        if is_applied:
            again = "all functions are applied again"
            told = [(defect, again) for defect in installer.changed_functions(connection)] + told
            left = "select q.name from trunq.outdated o join trunq.queue q using (queue_id) order by queue_id"
            found = {name: found[name] for (name,) in connection.execute(left)}
    return Plan(
        before,
        installer.newest(),
        [migration.name for migration in missing],
        sorted({table for migration in missing for table in _ALTERED.findall(migration.sql)}),
        not is_applied,
        list(found),
        [name for name, triggers in found.items() if triggers],
        [defect for defect, _ in told],
        yours,
        [repair for _, repair in told],
    )


def show(found: Plan, json: bool, *, is_repair: bool = False) -> None:
    """Say it, or write it as JSON."""
    if json:
        write_json(asdict(found))
        return
    _show_defects(found, is_repair)
    if not (found.functions or found.queues):
        say("Schema {after} is there and up to date.", after=found.after)
        if found.defects:
            say("Nothing was changed.")
        return
    if found.functions:
        say("First, in one transaction, which waits for nobody for more than 200 ms:")
        for name in found.migrations:
            say("  migration {name}", name=name)
        for table in found.tables:
            say("  {table}: changed, locked for a moment", table=table)
        for needed in found.yours:
            say("  {needed}, which may be replaced: then the upgrade stops, changing nothing", needed=needed)
        say("  all functions: applied again, no table is locked")
    say("Then {queues}, each in a transaction of its own: its functions are made again.",
        queues=display.counted(len(found.queues), "queue"))  # fmt: skip
    if found.logs:
        get = display.counted(len(found.logs), "log gets", "logs get")
        say("  {get} a trigger; publishers wait for it, up to 200 ms at a time: {logs}",
            get=get, logs=", ".join(found.logs))  # fmt: skip
    say("Nothing was changed.")


def _show_defects(found: Plan, is_repair: bool) -> None:
    for defect, repair in zip(found.defects, found.repairs, strict=True):
        if is_repair:
            say("{defect}: is put back, in the end, by: {repair}", defect=defect, repair=repair)
        else:
            say("{defect}: --repair puts it back", defect=defect)
    if is_repair and not found.defects:
        say("No queue lacks anything, as far as the functions there tell it: there is nothing to repair.")
