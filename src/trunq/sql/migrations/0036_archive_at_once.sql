-- An archive may be written in the transactions of answers (functions/keep/archive.sql).
alter table trunq.taker add column at_once boolean;
comment on column trunq.taker.at_once is
  'Of an archive: whether answers write their rows themselves. False: they did so once; null: never.';
-- Functions that take, or return, something else now.
do $$ begin if to_regprocedure('trunq.create_archive(text, interval)') is not null then drop function trunq.create_archive(text, interval); end if; end $$;
do $$ begin if to_regprocedure('trunq.list_archives()') is not null then drop function trunq.list_archives(); end if; end $$;
