-- Columns that a user adds to a log (alter table trunq_log.<queue> add column ...) stay with a message through retry, delay and
-- death. trunq.delayed and trunq.dead serve all queues, so they keep them as one jsonb; the way back into the log names them again.

create or replace function trunq._is_wider(p_log regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.relnatts > (select s.relnatts from pg_class s where s.oid = 'trunq_log._specimen'::regclass) from pg_class c where c.oid = p_log
$$;
comment on function trunq._is_wider is 'Whether the user added columns to a log.';

create or replace function trunq._extra(p_row jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select p_row - '{id,txid,created_at,subscription_id,segment,attempt,priority,kind,key,payload,body,headers,errors,expiries,due_at,options}'::text[]
$$;
comment on function trunq._extra is 'The columns that the user added to the log, of one of its rows.';

create or replace function trunq._extra_columns(p_queue trunq.queue, p_prefix text default '') returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(string_agg(format(', %s%I', p_prefix, a.attname), '' order by a.attnum), '')
  from pg_attribute a
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
    and not exists (select from pg_attribute s where s.attrelid = 'trunq_log._specimen'::regclass and s.attname = a.attname)
$$;
comment on function trunq._extra_columns is
  'The columns that the user added to a log, to be put behind a list of columns: ", a, b", or nothing.';

create or replace function trunq._extra_values(p_queue trunq.queue) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select coalesce(string_agg(
    -- A column added since the message was put off has its default, as in the rows that were there.
    format(', case when g.extra ? %1$L then e.%1$I else %2$s end', a.attname, coalesce(pg_get_expr(f.adbin, f.adrelid), 'null')),
    '' order by a.attnum), '')
  from pg_attribute a
  left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
    and not exists (select from pg_attribute s where s.attrelid = 'trunq_log._specimen'::regclass and s.attname = a.attname)
$$;
comment on function trunq._extra_values is
  'The values of the columns that the user added to a log, of a message g with its columns e: ", ..., ...", or nothing.';

create or replace function trunq._log(p_queue trunq.queue, p_rows text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_columns constant text := 'id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors, expiries, options';
  v_values constant text := 'g.' || replace(c_columns, ', ', ', g.');
  v_extra constant text := trunq._extra_columns(p_queue);
begin
  if v_extra = '' then
    return format('logged as (insert into trunq_log.%I (%s) select %s from %s g order by g.at, g.id)',
      p_queue.log_table, c_columns, v_values, p_rows);
  end if;
  return format($q$
    logged as (
      insert into trunq_log.%1$I (%2$s)
      select %3$s from %4$s g where g.extra is null order by g.at, g.id),
    logged_with_extra as (
      insert into trunq_log.%1$I (%2$s%5$s)
      select %3$s%6$s from %4$s g cross join jsonb_populate_record(null::trunq_log.%1$I, g.extra) e
      where g.extra is not null order by g.at, g.id)
  $q$, p_queue.log_table, c_columns, v_values, p_rows, v_extra, trunq._extra_values(p_queue));
end $$;
comment on function trunq._log is
  'Entries of a WITH list that insert messages into the log of a queue: p_rows names an earlier entry that has the columns of the log, extra, and at (their order).';
