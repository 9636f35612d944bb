-- What the handlers of the demo write to, made anew for each run. Spark makes demo.punctuality itself.
drop schema if exists demo cascade;
create schema demo;

create table demo.compensation (
  message_id bigint not null,
  carrier text not null,
  minutes integer not null,
  euros integer not null
);
comment on table demo.compensation is
  'Written by the handler of late flights, in one transaction with its answer. Nothing here forbids a second row: that there is none is what the run shows.';
