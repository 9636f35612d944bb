-- trunq.reset gives a subscription another number: its lanes' policy and settings, its rank function and its workers go along.
alter table trunq.lane_policy
  drop constraint lane_policy_subscription_id_fkey,
  add constraint lane_policy_subscription_id_fkey foreign key (subscription_id) references trunq.subscription on delete cascade on update cascade;
alter table trunq.lane
  drop constraint lane_subscription_id_fkey,
  add constraint lane_subscription_id_fkey foreign key (subscription_id) references trunq.subscription on delete cascade on update cascade;
alter table trunq.ranking
  drop constraint ranking_subscription_id_fkey,
  add constraint ranking_subscription_id_fkey foreign key (subscription_id) references trunq.subscription on delete cascade on update cascade;
alter table trunq.worker
  drop constraint worker_subscription_id_fkey,
  add constraint worker_subscription_id_fkey foreign key (subscription_id) references trunq.subscription on delete cascade on update cascade;
