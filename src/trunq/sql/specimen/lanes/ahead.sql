-- Lanes say what comes next: nothing is leased by its id past them.

create or replace function trunq_queue._lanespecimen_lease_ids(
  p_subscription text, p_worker text, p_ids bigint[], p_lease_time interval default null
) returns table (
  id bigint, state text, reason text, worker text, due_at timestamptz, lease_id bigint, token bigint, attempt smallint,
  max_attempts integer, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint,
  created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql security definer volatile rows 100 set search_path = pg_catalog, pg_temp
as $$
begin
  perform trunq._check_ids(p_ids, p_lease_time);
  perform trunq._subscription('_specimen', p_subscription, 'shared');
  perform trunq._fail('TQ005',
    format('queue "%s" has lanes, which say what comes next: nothing is leased by its id', '_specimen'),
    'put the lane of the message first (trunq.set_lane), or publish what is to be leased by id to a queue without lanes');
end $$;
revoke execute on function trunq_queue._lanespecimen_lease_ids from public;
comment on function trunq_queue._lanespecimen_lease_ids is
  'Refuses to lease messages by their ids: lanes say what comes next.
Raises: TQ002, TQ005, TQ007, TQ010, TQ011.';
