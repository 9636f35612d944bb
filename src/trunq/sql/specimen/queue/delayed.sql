-- A plain INSERT or COPY may give due_at: the row is moved from the log to trunq.delayed before its transaction ends. After the row
-- is in, not before: a trigger before it would keep COPY from writing many rows at once, for those without due_at too (1.10 of
-- the time of a COPY without a trigger; this one 1.00, and 1.05 of a single INSERT).

create or replace function trunq_queue._specimen_put_off() returns trigger
-- For publishers, who may write to the log and nothing else.
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Columns of the user go through jsonb, as in trunq_queue._specimen_give_back.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
as $$
begin
  if new.due_at is null or new.created_at not between '0001-01-02 00:00:00+00' and '9999-12-31 00:00:00+00'
      or new.options ? 'checkpoint' and new.subscription_id is null then
    perform trunq._refuse_row(new.created_at);
  end if;
  insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, errors, extra, expiries, options)
  values (0 /*queue_id*/, new.id, new.subscription_id, trunq._due_at(null, new.due_at), new.created_at, new.attempt, new.priority, new.kind, new.key,
    new.payload, new.body, new.headers, new.errors,
    case when trunq._is_wider('trunq_log._specimen'::regclass) then trunq._extra(to_jsonb(new)) end, new.expiries, new.options);
  perform set_config('trunq.rewrite', 'on', true);
  delete from trunq_log._specimen g
  where g.segment = new.segment and g.txid = new.txid and g.id = new.id and g.subscription_id is not distinct from new.subscription_id;
  perform set_config('trunq.rewrite', 'off', true);
  return null;
end $$;
-- As those of functions/log/gate.sql.
revoke execute on function trunq_queue._specimen_put_off from public;
comment on function trunq_queue._specimen_put_off is 'After an insert of a message with due_at: moves it to trunq.delayed. Refuses (TQ005) one that could not be read.';
