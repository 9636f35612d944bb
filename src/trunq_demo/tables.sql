-- The table that the handlers of the demo write to, created afresh for each run. Spark creates demo.punctuality.
drop schema if exists demo cascade;
create schema demo;

create table demo.compensation (
  message_id bigint not null,
  carrier text not null,
  minutes integer not null,
  euros integer not null
);
comment on table demo.compensation is
  'The handler of late flights writes it in one transaction with its answer. No constraint forbids a second row for a message: the run shows that there is none.';
