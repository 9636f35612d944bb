-- What a diagnosis compares with: what functions do as they were installed, how large the database was, and whose clock is wrong.
alter table trunq.function add column body text;
comment on column trunq.function.body is 'The md5 of what the function does, as an install made it; null: unknown.';
alter table trunq.sample add column bytes bigint;
comment on column trunq.sample.bytes is 'Of the duty itself, every ten minutes: how large the database is.';
alter table trunq.worker_report add column ahead double precision;
comment on column trunq.worker_report.ahead is 'By how many seconds the clock of its machine was ahead of the server''s; negative: behind, or on the way for so long. null: unknown.';
alter table trunq.leader add column ahead double precision;
comment on column trunq.leader.ahead is 'By how many seconds the clock of its machine was ahead of the server''s, when it last noted its duties. null: unknown.';
-- They take the clock of the caller now, and Postgres would keep both.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('_report', '_report_queue', '_note_duties', 'diagnose', '_areas')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
