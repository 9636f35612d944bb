select pgq.create_queue('q')

create view public.new_events as
  select ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgq.event_1 order by ev_id

create function public.replay() returns setof public.new_events language plpgsql as $$
declare v_seen bigint := coalesce(nullif(current_setting('seen.to', true), ''), '0')::bigint;
begin
  perform set_config('seen.to', (select coalesce(max(ev_id), 0) from public.new_events)::text, false);
  return query select * from public.new_events n where n.ev_id > v_seen;
end $$

create table public.rate (id serial primary key, name text, n integer, flag boolean, at timestamp, attz timestamptz, day date)

create trigger capture after insert or update or delete on public.rate for each row execute function pgq.{format}triga('q')

create trigger emptied after truncate on public.rate for each statement execute function pgq.{format}triga('q')

insert into public.rate (name, n, flag, at, attz, day) values ('one', 1, true, '2001-02-03 04:05:06', '2001-02-03 04:05:06.789+00', '2001-02-03'), ('it''s "a" \ b&c=d+e %20 ~ü' || chr(10) || chr(9) || '/', -5, false, 'infinity', '-infinity', '2001-02-03 BC'), (null, null, null, null, null, null), ('', 0, false, '2001-02-03 04:05:06.7', '2001-02-03 04:05:06+02', 'infinity')

select * from public.replay()

update public.rate set name = name || '!', n = n + 1

select * from public.replay()

-- Nothing changed at all: an event.
update public.rate set n = n where id = 1

select * from public.replay()

-- From and to null.
update public.rate set flag = null where id = 1

update public.rate set flag = true, name = null where id = 1

update public.rate set name = 'back' where id = 3

select * from public.replay()

update public.rate set id = 10 where id = 1

delete from public.rate where id in (1, 2)

select * from public.replay()

truncate public.rate

select * from public.replay()

-- The text of a value follows the session.
set datestyle = 'german'

set bytea_output = 'escape'

set timezone = 'Asia/Kathmandu'

insert into public.rate (name, at, attz, day) values ('session', '2001-02-03 04:05:06', '2001-02-03 04:05:06+00', '2001-02-03')

select * from public.replay()

reset datestyle

reset bytea_output

reset timezone

-- Many types.
create type public.mood as enum ('sad', 'it''s "ok"')

create domain public.posint as integer check (value > 0)

create type public.pair as (a integer, b text)

create table public.types (id bigint primary key, i2 smallint, r real, d double precision, num numeric(20, 5), m money, b bytea, c char(5), v varchar(10), nm name, ch "char", o oid, u uuid, j json, jb jsonb, ia integer[], ta text[], iv interval, t time, ttz timetz, ip inet, ci cidr, mac macaddr, bi bit(5), vb varbit, p point, bx box, md public.mood, dm public.posint, pr public.pair, rg int4range, ts tsvector)

create trigger capture after insert or update or delete on public.types for each row execute function pgq.{format}triga('q')

insert into public.types (id) values (1)

insert into public.types values (9223372036854775807, -32768, 1.5, 0.1, 12345.678, 12.34, '\x00ff10', 'ab', 'xy', 'nm', 'c', 4294967295, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, 2.50, "x"]}', '{"b": null, "a": 1.0}', '{1,2,null}', '{"a b",null,"q\"x"}', '1 year 2 days 03:04:05.6', '01:02:03.4', '01:02:03+02', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', b'10101', b'1', '(1,2)', '((1,2),(3,4))', 'it''s "ok"', 7, '(1,"x y")', '[1,5)', 'a b:1')

insert into public.types (id, r, d, num, dm, jb, ia, b) values (3, 'NaN', '-Infinity', 'NaN', 1, '"x"', '{}', '')

select * from public.replay()

update public.types set num = 1.50, r = r, b = '\x01', jb = '[1]', ia = '{{1,2},{3,4}}' where id <> 1

select * from public.replay()

delete from public.types

select * from public.replay()

-- Odd names, a key of two columns, dropped and added columns.
create table public."Odd ""Table"" %s" ("Key B" text, gone integer, "key A" integer, "col=&" text, "select" text, primary key ("key A", "Key B"))

create trigger capture after insert or update or delete on public."Odd ""Table"" %s" for each row execute function pgq.{format}triga('q')

insert into public."Odd ""Table"" %s" values ('b', 1, 2, 'x', 'y')

alter table public."Odd ""Table"" %s" drop column gone

alter table public."Odd ""Table"" %s" add column later text default 'z'

insert into public."Odd ""Table"" %s" values ('b\', 3, 'x', 'y')

update public."Odd ""Table"" %s" set "col=&" = 'changed'

update public."Odd ""Table"" %s" set "select" = null, later = '\' where "key A" = 3

delete from public."Odd ""Table"" %s"

select * from public.replay()

create schema other

create table other.t (id integer primary key)

create trigger capture after insert on other.t for each row execute function pgq.{format}triga('q')

insert into other.t values (1)

select * from public.replay()

-- No key.
create table public.keyless (a integer, b text)

create trigger capture after insert or update or delete on public.keyless for each row execute function pgq.{format}triga('q')

insert into public.keyless values (1, 'x')

update public.keyless set b = 'y'

delete from public.keyless

select * from public.replay()

-- A key that is given.
drop trigger capture on public.keyless

create trigger capture after insert or update or delete on public.keyless for each row execute function pgq.{format}triga('q', 'pkey=a')

insert into public.keyless values (2, 'x'), (null, 'no key')

update public.keyless set b = 'y' where a = 2

update public.keyless set b = 'y' where a is null

update public.keyless set a = 7 where a = 2

delete from public.keyless

select * from public.replay()

drop trigger capture on public.keyless

create trigger capture after insert or update or delete on public.keyless for each row execute function pgq.{format}triga('q', 'pkey=b,a')

insert into public.keyless values (3, 'z')

delete from public.keyless

select * from public.replay()

drop trigger capture on public.keyless

create trigger capture after insert or update or delete on public.keyless for each row execute function pgq.{format}triga('q', 'pkey=nosuch')

insert into public.keyless values (4, 'z')

update public.keyless set b = 'zz'

update public.keyless set b = b

delete from public.keyless

select * from public.replay()

-- Columns that are left out.
create table public.opt (id integer primary key, a text, b text, c text)

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'ignore=a,c')

insert into public.opt values (1, 'a', 'b', 'c')

update public.opt set a = 'aa'

update public.opt set a = 'aaa', b = 'bb'

update public.opt set b = b

delete from public.opt

select * from public.replay()

drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'ignore=id')

insert into public.opt values (1, 'a', 'b', 'c')

update public.opt set a = 'aa'

update public.opt set id = 2

delete from public.opt

select * from public.replay()

-- The row before.
drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'backup')

insert into public.opt values (1, 'a', null, 'c')

update public.opt set a = 'a&=', b = 'b'

update public.opt set c = c

delete from public.opt

select * from public.replay()

drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'ignore=c', 'backup')

insert into public.opt values (1, 'a', null, 'c')

update public.opt set a = 'x', c = 'cc'

update public.opt set c = 'ccc'

select * from public.replay()

-- Instead of the change itself.
drop trigger capture on public.opt

create trigger capture before insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'SKIP')

insert into public.opt values (2, 'a', 'b', 'c')

update public.opt set a = 'skipped'

delete from public.opt

select * from public.opt

select * from public.replay()

-- Before it, which happens.
drop trigger capture on public.opt

create trigger capture before insert or update or delete on public.opt for each row execute function pgq.{format}triga('q')

insert into public.opt values (2, 'a', 'b', 'c')

update public.opt set a = 'before' where id = 2

delete from public.opt where id = 1

select * from public.opt

select * from public.replay()

-- No change at all.
drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'deny')

insert into public.opt values (3)

update public.opt set a = 'denied'

delete from public.opt

create trigger emptied after truncate on public.opt for each statement execute function pgq.{format}triga('q', 'deny')

truncate public.opt

set session_replication_role = local

update public.opt set a = 'local'

reset session_replication_role

set session_replication_role = replica

update public.opt set a = 'replica'

reset session_replication_role

select * from public.replay()

drop trigger emptied on public.opt

-- Replication roles without deny.
drop trigger capture on public.opt

create trigger capture before insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'SKIP')

set session_replication_role = local

update public.opt set a = 'is not skipped'

select * from public.opt

reset session_replication_role

select * from public.replay()

-- Fields by SQL.
drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'ev_type=''t'' || id', 'ev_data=upper(a)', 'ev_extra1=id + 1', 'ev_extra2=b', 'ev_extra3=case when id > 1 then ''big'' end', 'ev_extra4=current_setting(''server_version_num'')::int > 0')

insert into public.opt values (5, 'a', 'b', 'c')

update public.opt set a = 'new', b = 'bb' where id = 5

delete from public.opt where id = 5

select * from public.replay()

-- A condition.
drop trigger capture on public.opt

create trigger capture after insert or update or delete on public.opt for each row execute function pgq.{format}triga('q', 'when=id > 5')

insert into public.opt values (5, 'a', 'b', 'c'), (6, 'a', 'b', 'c')

update public.opt set a = 'cond'

delete from public.opt

select * from public.replay()

drop trigger capture on public.opt

create trigger capture after insert or update on public.opt for each row execute function pgq.{format}triga('q', 'when=a = ''yes''')

insert into public.opt values (7, null, 'b', 'c'), (8, 'yes', 'b', 'c'), (9, 'no', 'b', 'c')

update public.opt set a = 'yes' where id = 7

update public.opt set a = 'no' where id = 8

select * from public.replay()

-- Arguments that are wrong.
drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga()

insert into public.opt values (20)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'nonsense')

insert into public.opt values (20)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'nonsense=1')

insert into public.opt values (20)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'skip')

insert into public.opt values (20)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'ev_data=nosuch')

insert into public.opt values (21)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'ev_data=1/0')

insert into public.opt values (21)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('nosuch')

insert into public.opt values (21)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', '')

insert into public.opt values (22)

drop trigger capture on public.opt

create trigger capture after insert on public.opt for each row execute function pgq.{format}triga('q', 'ev_extra5=1')

insert into public.opt values (22)

drop trigger capture on public.opt

create trigger capture after insert or update on public.opt for each row execute function pgq.{format}triga('q', 'ev_extra3=1', 'ev_extra3=2', 'ignore=', 'pkey=')

insert into public.opt values (23)

update public.opt set a = 'x' where id = 23

select * from public.replay()

create trigger statement after insert on public.opt for each statement execute function pgq.{format}triga('q')

insert into public.opt values (24)

drop trigger statement on public.opt

select * from public.replay()

-- Columns that are fields of the event.
create table public.magic (id integer primary key, v text, _pgq_ev_type text, _pgq_ev_extra1 text, _pgq_ev_extra2 text, _pgq_ev_extra3 text, _pgq_ev_extra4 text, _pgq_other text)

create trigger capture before insert or update or delete on public.magic for each row execute function pgq.{format}triga('q', 'SKIP', 'ev_extra4=''argument''')

insert into public.magic values (1, 'v', 'my type', 'e1', 'e2', 'e3', 'e4', 'o')

insert into public.magic (id, v) values (2, 'v')

select * from public.replay()

drop trigger capture on public.magic

insert into public.magic values (1, 'v', 'my type', 'e1', 'e2', 'e3', 'e4', 'o')

create trigger capture after insert or update or delete on public.magic for each row execute function pgq.{format}triga('q')

update public.magic set _pgq_ev_extra1 = 'new'

update public.magic set _pgq_ev_type = null, _pgq_other = 'x'

update public.magic set id = id

delete from public.magic

select * from public.replay()

drop trigger capture on public.magic

create trigger capture after insert or update or delete on public.magic for each row execute function pgq.{format}triga('q', 'ignore=v,_pgq_other', 'backup', 'ev_type=_pgq_ev_extra3')

insert into public.magic values (1, 'v', 'my type', 'e1', 'e2', 'e3', 'e4', 'o')

update public.magic set v = 'w'

update public.magic set v = 'x', _pgq_ev_extra1 = 'new'

select * from public.replay()

-- Equal, though written differently.
create table public.equal (id integer primary key, n numeric, iv interval, d double precision, j json, jb jsonb, p point, na numeric[], ip inet, bd boolean, nr numrange)

create trigger capture after insert or update or delete on public.equal for each row execute function pgq.{format}triga('q', 'ignore=bd')

insert into public.equal values (1, 1.5, '1 day', 0, '{"a":1}', '1.5', '(0,0)', '{1.5}', '10.0.0.1', true, '[1.5,2)')

update public.equal set n = 1.50

update public.equal set iv = '24 hours'

update public.equal set d = '-0'

update public.equal set j = '{"a": 1}'

update public.equal set jb = '1.50'

update public.equal set p = '(0,-0)'

update public.equal set na = '{1.50}'

update public.equal set ip = '10.0.0.1/32'

update public.equal set nr = '[1.50,2)'

update public.equal set n = 1.500, bd = false

select * from public.replay()

-- Types whose text is not what a cast to text gives.
create domain public.truth as boolean

create table public.shown (id integer primary key, t public.truth, ta boolean[], ip inet, c char(3), p public.pair, "new" integer, "old" integer, r integer, v_new integer)

create trigger capture after insert or update or delete on public.shown for each row execute function pgq.{format}triga('q', 'ev_extra2=r', 'ev_extra3=v_new + shown.id')

insert into public.shown values (1, true, '{t,f}', '10.0.0.1', 'a', (null, null), 1, 2, 3, 4)

drop trigger capture on public.shown

create trigger capture after insert or update or delete on public.shown for each row execute function pgq.{format}triga('q', 'ev_extra2=r', 'ev_extra3=v_new + r', 'ev_extra4=(select max(x) from generate_series(1, r) x)')

insert into public.shown values (1, true, '{t,f}', '10.0.0.1', 'a', (null, null), 1, 2, 3, 4), (2, false, '{}', '::1', '', null, null, null, null, null)

delete from public.shown

select * from public.replay()

-- What is a condition.
create table public.cond (id integer primary key, t text)

create trigger capture after insert on public.cond for each row execute function pgq.{format}triga('q', 'when=t')

insert into public.cond values (1, 't')

drop trigger capture on public.cond

create trigger capture after insert on public.cond for each row execute function pgq.{format}triga('q', 'ev_data=1/(id-1)', 'when=id > 1', 'when=false', 'ev_type=', 'ev_extra1=null')

insert into public.cond values (1), (2)

select * from public.replay()

-- Of a whole table.
create trigger emptied after truncate on public.cond for each statement execute function pgq.{format}triga('q', 'pkey=id')

truncate public.cond

drop trigger emptied on public.cond

create trigger emptied after truncate on public.cond for each statement execute function pgq.{format}triga('q', 'ev_data=''mine''', 'ev_extra3=1+1')

truncate public.cond

drop trigger emptied on public.cond

create trigger emptied after truncate on public.cond for each statement execute function pgq.{format}triga('q', 'when=false', 'backup', 'ignore=id')

truncate public.cond

drop trigger emptied on public.cond

create trigger emptied before truncate on public.cond for each statement execute function pgq.{format}triga('q', 'SKIP')

truncate public.cond

select * from public.replay()

drop trigger capture on public.cond

-- What comes first.
create trigger capture after insert or delete on public.cond for each row execute function pgq.{format}triga('q', 'deny', 'nonsense')

insert into public.cond values (7)

set session_replication_role = local

insert into public.cond values (7)

reset session_replication_role

drop trigger capture on public.cond

create trigger capture after delete on public.cond for each row execute function pgq.{format}triga('q', 'deny', 'pkey=')

delete from public.cond

create table public.unknown (id integer primary key, _pgq_ev_foo text)

create trigger capture after insert on public.unknown for each row execute function pgq.{format}triga('q')

insert into public.unknown values (1)

create table public.data (id integer primary key, _pgq_ev_data text)

create trigger capture after insert on public.data for each row execute function pgq.{format}triga('q')

insert into public.data values (1, 'mine')

select * from public.replay()

-- All is computed, whatever the condition says.
create trigger conditional after insert on public.shown for each row execute function pgq.{format}triga('q', 'ev_data=1/(id-1)', 'when=id > 1')

insert into public.shown (id) values (1)

insert into public.shown (id) values (2)

select ev_type, ev_data from public.replay()

-- Of a partitioned table, and of a view that is written to.
create table public.parted (id integer primary key, v text) partition by range (id)

create table public.part partition of public.parted for values from (0) to (10)

create trigger capture after insert or update or delete on public.parted for each row execute function pgq.{format}triga('q')

insert into public.parted values (1, 'a')

update public.parted set v = 'b'

delete from public.parted

select * from public.replay()

-- A replaced insert_event is the one that is called.
create table public.heard (line text)

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text) returns bigint language plpgsql as $$
begin
  insert into public.heard values (queue_name || ' ' || ev_data);
  return 1;
end $$

insert into other.t values (2)

select * from public.heard

-- Lists with blanks, and names with blanks.
create table public.blanks (a integer, b integer, v integer, "x y" integer)

create trigger capture after insert or update or delete on public.blanks for each row execute function pgq.{format}triga('q', 'pkey=a, b', 'ignore= "x y",v')

insert into public.blanks values (1, 1, 0, 0), (1, 2, 0, 0)

update public.blanks set v = 5 where a = 1 and b = 2

update public.blanks set b = 7 where b = 2

delete from public.blanks where b = 1

select * from public.replay()

drop trigger capture on public.blanks

create trigger capture after insert or update or delete on public.blanks for each row execute function pgq.{format}triga('q', E'pkey= a\t,,b x y , ', E'ignore=\nv ')

insert into public.blanks values (3, 1, 0, 0)

update public.blanks set "x y" = 5 where a = 3

delete from public.blanks where a = 3

select * from public.replay()

drop table public.blanks

-- Columns that are computed, before they are.
create table public.computed (id integer primary key, a integer, g integer generated always as (a * 2) stored, at timestamp generated always as ('2001-02-03'::timestamp + make_interval(days => a)) stored)

create trigger capture before insert or update or delete on public.computed for each row execute function pgq.{format}triga('q')

insert into public.computed values (1, 1)

update public.computed set a = 2

update public.computed set a = a

delete from public.computed

select * from public.replay()

drop trigger capture on public.computed

create trigger capture before insert or update or delete on public.computed for each row execute function pgq.{format}triga('q', 'backup', 'when=g is not null', 'ev_extra1=g::text')

insert into public.computed values (1, 1)

update public.computed set a = 2

delete from public.computed

select * from public.replay()

drop trigger capture on public.computed

create trigger capture before insert or update or delete on public.computed for each row execute function pgq.{format}triga('q', 'pkey=g')

insert into public.computed values (1, 1)

update public.computed set a = 2

update public.computed set a = 3

delete from public.computed

select * from public.replay()

drop table public.computed

-- What does not make sense.
create table public.odd (id integer primary key, a integer)

create trigger capture after insert or update or delete on public.odd for each row execute function pgq.{format}triga('q', 'SKIP')

insert into public.odd values (1, 1)

drop trigger capture on public.odd

insert into public.odd values (1, 1)

create trigger capture after insert or update or delete on public.odd for each row execute function pgq.{format}triga('q', 'SKIP', 'deny', 'pkey=')

update public.odd set a = 2

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'SKIP')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'ignore=a')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'ignore=')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'backup')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'SKIP', 'backup', 'pkey=a', 'ignore=a')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'SKIP', 'deny')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'when=1', 'bogus')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'bogus', 'when=1')

truncate public.odd

drop trigger capture on public.odd

create trigger capture after truncate on public.odd execute function pgq.{format}triga('q', 'ignore=a', 'ev_data=1')

truncate public.odd

drop trigger capture on public.odd

create trigger capture before truncate on public.odd execute function pgq.{format}triga('q', 'SKIP')

truncate public.odd

select * from public.replay()

select count(*) from public.odd
