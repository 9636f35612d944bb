create table trunq.former (
  function text primary key
);
comment on table trunq.former is
  'Internal functions that the newest upgrade did not define again, by signature. Queues may call them until they are up to date; then they are dropped (trunq._drop_former).';
