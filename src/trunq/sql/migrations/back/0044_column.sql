-- Columns of the user's stay in the logs, and with their messages. An older release would read past a filter that asks of them.
do $$
declare
  v record;
begin
  for v in
    select q.name queue, s.name subscription
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where s.filter ?| '{columns,not_columns}'
  loop
    raise exception 'the filter of subscription "%" of queue "%" asks of columns, which the older release does not know', v.subscription, v.queue
      using hint = 'give it a filter of kinds, keys or headers first (trunq subscription set --help), or {}, and downgrade again';
  end loop;
end $$;
