-- An archive may be written in the transactions of answers (functions/keep/archive.sql).
alter table trunq.taker add column at_once boolean;
comment on column trunq.taker.at_once is
  'Of an archive: whether answers write their rows themselves. False: they did so once; null: never.';
-- Functions that take, or return, something else now.
drop function if exists trunq.create_archive(text, interval);
drop function if exists trunq.list_archives();
