-- pgq_ext: what a consumer has done, kept in the database where it does it, so that a batch or an event that comes again takes effect once.
-- It needs nothing of a queue. trunq's own readers write a mark of their own in the same transaction (trunq stream move).

do $$
begin
  if to_regnamespace('pgq_ext') is not null then
    return;
  end if;
  create schema pgq_ext;
  create table pgq_ext.completed_tick (
    consumer_id text not null,
    subconsumer_id text not null default '',
    last_tick_id bigint not null,
    constraint completed_tick_pkey primary key (consumer_id, subconsumer_id)
  );
  create table pgq_ext.completed_batch (
    consumer_id text not null,
    subconsumer_id text not null default '',
    last_batch_id bigint not null,
    constraint completed_batch_pkey primary key (consumer_id, subconsumer_id)
  );
  create table pgq_ext.completed_event (
    consumer_id text not null,
    subconsumer_id text not null default '',
    batch_id bigint not null,
    event_id bigint not null,
    constraint completed_event_pkey primary key (consumer_id, subconsumer_id, batch_id, event_id)
  );
  create table pgq_ext.partial_batch (
    consumer_id text not null,
    subconsumer_id text not null default '',
    cur_batch_id bigint not null,
    constraint partial_batch_pkey primary key (consumer_id, subconsumer_id)
  );
end $$;

comment on table pgq_ext.completed_tick is 'The last tick that a consumer has done.';
comment on table pgq_ext.completed_batch is 'The last batch that a consumer has done: they come one after the other.';
comment on table pgq_ext.completed_event is 'The events that a consumer has done of its present batch.';
comment on table pgq_ext.partial_batch is 'The batch whose events pgq_ext.completed_event has.';

create or replace function pgq_ext.version() returns text
language sql stable as $$ select '3.3' $$;

create or replace function pgq_ext.upgrade_schema() returns integer
language sql stable as $$ select 0 $$;

create or replace function pgq_ext.get_last_tick(a_consumer text, a_subconsumer text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return (select t.last_tick_id from pgq_ext.completed_tick t where t.consumer_id = a_consumer and t.subconsumer_id = a_subconsumer);
end $$;

create or replace function pgq_ext.set_last_tick(a_consumer text, a_subconsumer text, a_tick_id bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if a_tick_id is null then
    delete from pgq_ext.completed_tick t where t.consumer_id = a_consumer and t.subconsumer_id = a_subconsumer;
  else
    insert into pgq_ext.completed_tick (consumer_id, subconsumer_id, last_tick_id) values (a_consumer, a_subconsumer, a_tick_id)
    on conflict on constraint completed_tick_pkey do update set last_tick_id = excluded.last_tick_id;
  end if;
  return 1;
end $$;

create or replace function pgq_ext.is_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_is_done boolean;
begin
  select b.last_batch_id = a_batch_id into v_is_done
  from pgq_ext.completed_batch b where b.consumer_id = a_consumer and b.subconsumer_id = a_subconsumer;
  return case when found then v_is_done else false end;
end $$;

create or replace function pgq_ext.set_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if pgq_ext.is_batch_done(a_consumer, a_subconsumer, a_batch_id) then
    return false;
  elsif a_batch_id > 0 then
    insert into pgq_ext.completed_batch (consumer_id, subconsumer_id, last_batch_id) values (a_consumer, a_subconsumer, a_batch_id)
    on conflict on constraint completed_batch_pkey do update set last_batch_id = excluded.last_batch_id;
  end if;
  return true;
end $$;

create or replace function pgq_ext.is_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return exists (
    select from pgq_ext.completed_event e
    where e.consumer_id = a_consumer and e.subconsumer_id = a_subconsumer and e.batch_id = a_batch_id and e.event_id = a_event_id);
end $$;

create or replace function pgq_ext.set_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if pgq_ext.is_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id) then
    return false;
  end if;
  insert into pgq_ext.completed_event (consumer_id, subconsumer_id, batch_id, event_id) values (a_consumer, a_subconsumer, a_batch_id, a_event_id);
  insert into pgq_ext.partial_batch as p (consumer_id, subconsumer_id, cur_batch_id) values (a_consumer, a_subconsumer, a_batch_id)
  on conflict on constraint partial_batch_pkey do update set cur_batch_id = excluded.cur_batch_id where p.cur_batch_id <> excluded.cur_batch_id;
  if found then
    -- Another batch than before: that one is finished where it came from.
    delete from pgq_ext.completed_event e
    where e.consumer_id = a_consumer and e.subconsumer_id = a_subconsumer and e.batch_id <> a_batch_id;
  end if;
  return true;
end $$;

do $$
declare
  v record;
begin
  -- Each of them without a member of a group.
  for v in
    select * from (values
      ('get_last_tick', 'a_consumer text', 'a_consumer, ''''', 'bigint'),
      ('set_last_tick', 'a_consumer text, a_tick_id bigint', 'a_consumer, '''', a_tick_id', 'integer'),
      ('is_batch_done', 'a_consumer text, a_batch_id bigint', 'a_consumer, '''', a_batch_id', 'boolean'),
      ('set_batch_done', 'a_consumer text, a_batch_id bigint', 'a_consumer, '''', a_batch_id', 'boolean'),
      ('is_event_done', 'a_consumer text, a_batch_id bigint, a_event_id bigint', 'a_consumer, '''', a_batch_id, a_event_id', 'boolean'),
      ('set_event_done', 'a_consumer text, a_batch_id bigint, a_event_id bigint', 'a_consumer, '''', a_batch_id, a_event_id', 'boolean')
    ) f(name, parameters, arguments, result)
  loop
    execute format('create or replace function pgq_ext.%1$I(%2$s) returns %4$s language plpgsql set search_path = pg_catalog, pg_temp as $f$
      begin
        return pgq_ext.%1$I(%3$s);
      end $f$', v.name, v.parameters, v.arguments, v.result);
  end loop;
  for v in select p.oid::regprocedure signature, p.proname as name from pg_proc p where p.pronamespace = 'pgq_ext'::regnamespace loop
    execute format('revoke execute on function %s from public', v.signature);
    execute format('grant execute on function %s to %s', v.signature, case v.name when 'version' then 'public' else 'pgq_writer' end);
  end loop;
end $$;
grant usage on schema pgq_ext to public;
