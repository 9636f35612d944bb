alter table trunq.member drop column done, drop column done_tick_id, drop column done_moves, drop column done_at;
alter table trunq.subscription_group drop column moves;
