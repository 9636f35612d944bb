-- Replies to awaited messages that were acked. The essay is in functions/work/reply.sql.

create or replace function trunq_queue._specimen_reply(
  p_subscription_id integer, p_lease_id bigint, p_awaited bigint[], p_ids bigint[], p_results jsonb[], p_now timestamptz
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
set trunq.plan = hash as $$
declare
  v_ids bigint[];
begin
  with done as materialized (
    select distinct on (u.id) u.id, u.result, pg_column_size(u.result) > trunq._limit('reply_bytes') is_large
    from unnest(p_ids, p_results) u(id, result) join (select unnest(p_awaited) id) a on a.id = u.id order by u.id
  ),
  place as materialized (
    select u.id, u.txid from trunq_data._specimen_lease l cross join lateral unnest(l.ids, l.txids) u(id, txid)
    where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id
  ),
  said as (
    insert into trunq.reply as r (queue_id, subscription_id, id, outcome, result, error, replied_at, expires_at)
    select 0 /*queue_id*/, p_subscription_id, d.id, 'success', case when d.is_large is not true then d.result end,
      case when d.is_large then format('the result is too large: %s bytes, at most %s are kept for the one who waits', pg_column_size(d.result), trunq._limit('reply_bytes')) end,
      p_now, p_now + trunq._reply_time(m.options)
    from done d left join place p on p.id = d.id
    left join lateral (select g.options::jsonb from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, p.txid, p.id, p_subscription_id) limit 1) m on true
    on conflict (subscription_id, id) do update
      set outcome = excluded.outcome, result = excluded.result, error = excluded.error, replied_at = excluded.replied_at, expires_at = excluded.expires_at
    returning r.id)
  select array_agg(s.id order by s.id) into v_ids from said s;
  perform trunq._tell_replies(0 /*queue_id*/, v_ids);
end $$;
comment on function trunq_queue._specimen_reply is
  'Writes the replies to those of the acked messages that are among p_awaited, in the transaction of the ack.';
