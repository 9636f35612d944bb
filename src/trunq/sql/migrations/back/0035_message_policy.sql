-- The wider rule of options stays: messages that wait have them, and functions of before pass over what they do not know.

-- A queue that took nothing is closed: before, it knew no other way to say so.
update trunq.queue set is_closed = true, max_per_transaction = null where max_per_transaction = 0;
alter table trunq.queue
  drop constraint max_per_transaction_is_not_negative,
  add constraint max_per_transaction_is_positive check (max_per_transaction > 0);

-- An older release knows nothing of its function, and no message could die.
drop trigger if exists send on trunq.dead;
