"""What the catalog of its database is asked about a table, above all a captured one; %s is its name."""

from __future__ import annotations

from typing import Final

DETAILS: Final = """select a.attname, format_type(a.atttypid, a.atttypmod),
  a.atthasdef or a.atthasmissing, a.attgenerated = 'v', a.attnum
from pg_attribute a where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
order by a.attnum"""

# Images may be older than a condition of a domain, or than the name of a value of an enum.
KINDS: Final = """with recursive d(name, at, oid, modifier) as (
  select attname, attnum, atttypid, atttypmod from pg_attribute
  where attrelid = %s::regclass and attnum > 0 and not attisdropped
  union all select name, at, typbasetype, typtypmod from d join pg_type t on t.oid = d.oid
    where typtype = 'd')
select name::text, case when typtype = 'e' then 'text' else format_type(d.oid, modifier) end
from d join pg_type t on t.oid = d.oid where typtype <> 'd' order by at"""

# Of all that its columns are made of.
LABELS: Final = """with recursive t(oid) as (
  select atttypid from pg_attribute where attrelid = %(table)s::regclass and attnum > 0 and not attisdropped
  union select m.oid from t join pg_type p on p.oid = t.oid
  cross join lateral (select p.typbasetype union all select p.typelem
    union all select rngsubtype from pg_range where p.oid in (rngtypid, rngmultitypid)
    union all select atttypid from pg_attribute
      where attrelid = p.typrelid and attnum > 0 and not attisdropped) m(oid) where m.oid <> 0)
select e.oid::text, e.enumlabel::text from t join pg_enum e on e.enumtypid = t.oid"""

KEY_OF: Final = """select a.attname::text from pg_index i
cross join unnest(i.indkey::smallint[]) with ordinality k(attnum, at)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = {} and i.indisprimary and k.at <= i.indnkeyatts order by k.at"""
"""The columns of a primary key, without those that its index only includes; {} is the oid of the table."""
PRIMARY_KEY: Final = KEY_OF.format("%s::regclass")

FULL_NAME: Final = """select n.nspname || '.' || c.relname, row_security_active(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s::regclass"""

HAS_TRIGGERS: Final = """select exists (select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
  where t.tgrelid = to_regclass(%s) and p.pronamespace = to_regnamespace('trunq_data')
    and starts_with(p.proname, 'capture_'))"""
