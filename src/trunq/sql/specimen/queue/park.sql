-- Who may publish to a queue may resume what waits there for the outside: the web server that a callback comes to is a publisher. The
-- rules are in functions/work/park.sql.

create or replace function trunq_queue._specimen_resume(p_token text, p_value jsonb default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  return trunq._resume(0 /*queue_id*/, p_token, p_value);
end $$;
revoke execute on function trunq_queue._specimen_resume from public;
comment on function trunq_queue._specimen_resume is
  'Resumes the message of the queue that is parked under a token: trunq.resume.
Raises: TQ005, TQ006, TQ007.';
