-- The tables that the handlers of the demo write to, created afresh for each run. Spark creates demo.punctuality, and
-- pipelines demo.plane, demo.weather, demo.airline_month and demo.copy_<airport>.
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

create table demo.count (
  message_id bigint not null,
  unanswered bigint not null,
  counted_at timestamptz not null default clock_timestamp()
);
comment on table demo.count is 'How many flights waited or were worked on, counted each second by the handler of what a schedule publishes.';

create table demo.flight (
  id bigint primary key,
  carrier text not null,
  flight integer not null,
  tailnum text,
  origin text not null,
  dest text not null,
  time_hour timestamptz not null,
  distance integer not null,
  status text not null default 'scheduled',
  dep_delay integer,
  arr_delay integer,
  revision integer not null default 1
);
comment on table demo.flight is
  'A month of flights, which writers go on changing: status is scheduled, departed, then landed or diverted; or cancelled.';

create table demo.board_ewr (
  id bigint primary key,
  number numeric(4) not null,
  carrier text not null,
  tailnum text,
  dest text not null
);
create table demo.board_jfk (like demo.board_ewr including all);
create table demo.board_lga (like demo.board_ewr including all);
comment on table demo.board_lga is
  'The board of an airport, a customer of the pipeline boards. Number becomes wider while the demo runs: the day stands before it. No constraint of its copy forbids a second row for a flight: the run shows that there is none.';

create table demo.airline (carrier text primary key, name text not null);

create table demo.refund (
  message_id bigint not null,
  flight_id bigint not null,
  minutes integer not null,
  euros integer not null
);
comment on table demo.refund is
  'The compensations of the second act. No constraint forbids a second row for a flight: the run shows that there is none.';
