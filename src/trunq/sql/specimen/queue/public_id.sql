-- For publishers, to whom no door is open: others reach it through trunq.public_ids. The essay is in functions/work/public_id.sql.

create or replace function trunq_queue._specimen_public_ids(p_ids bigint[]) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if 0 > any (p_ids) then
    perform trunq._fail('TQ005', format('no message of queue "%s" has the id %s', '_specimen', (select min(u.id) from unnest(p_ids) u(id))),
      'give the id that publish returned');
  end if;
  return (select array_agg(case when u.id is not null then trunq._public_id(0 /*queue_id*/, u.id) end order by u.at) from unnest(p_ids) with ordinality u(id, at));
end $$;
revoke execute on function trunq_queue._specimen_public_ids from public;
comment on function trunq_queue._specimen_public_ids is
  'The public ids of messages of this queue, in the order of their ids.
Raises: TQ005 for an id that no message can have.';
