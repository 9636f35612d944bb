-- A duty says which line it is in, so list_duties has another column.
do $$
begin
  if to_regprocedure('trunq.list_duties()') is not null then
    drop function trunq.list_duties();
  end if;
end $$;

create table trunq.duty_done (
  duty text primary key,
  queue text not null default '',
  done_at timestamptz not null
);
comment on table trunq.duty_done is 'When each duty was last done of that queue for which it is longest ago; whoever performs the duties notes it every ten seconds. queue: empty for a duty of no queue, and where no queue stands out.';
