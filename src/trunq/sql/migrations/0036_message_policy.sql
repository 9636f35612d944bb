-- A queue may take nothing at all: at most 0 messages in a transaction.
alter table trunq.queue
  drop constraint max_per_transaction_is_positive,
  add constraint max_per_transaction_is_not_negative check (max_per_transaction >= 0);
