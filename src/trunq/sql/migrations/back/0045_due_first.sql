-- What fell due waits in the log like anything else, and comes in its order. What was handed out ahead of a position stays noted.
drop table trunq.due;
drop index trunq.ahead_due;
alter table trunq.ahead drop column due;
alter type trunq.leasing drop attribute due;
alter table trunq.subscription drop column due_first;
