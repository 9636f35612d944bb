-- The words for what becomes of a message: how an attempt ended, what state the message is in then, and for what reason it is dead. Whatever
-- names one of them takes it from these two tables: history, archive, statistics, takers, replies, lists of dead messages. The words that
-- arguments may be (roles, modes and so on) and the verbs of a queue stand in the table below them. src/trunq/word.py has all of them for
-- Python's types and the shell's choices; a test compares it, pages and constraints with these tables.
--
-- A receipt keeps a letter. Its word is looked up in a constant that the planner makes of the table once a plan, so that it costs a row
-- no call of a function.

create or replace function trunq._outcomes()
returns table (receipt "char", outcome text, state text, reason text, meaning text)
language sql immutable parallel safe as $$
  values
    ('a'::"char", 'success', 'done', null, 'its handler ended well'),
    ('r'::"char", 'failed', 'retrying', 'max_attempts', 'its handler failed'),
    ('t'::"char", 'timed_out', 'retrying', 'max_attempts', 'its handler took longer than it may'),
    ('j'::"char", 'rejected', 'dead', 'rejected', 'its handler gave it up'),
    ('l'::"char", 'released', 'ready', null, 'its worker gave it back, and no attempt counts'),
    ('k'::"char", 'parked', 'parked', null, 'it waits for the outside, and no attempt counts'),
    ('x'::"char", 'lease_expired', 'ready', 'lease_expired', 'its lease ran out, or its worker started again'),
    ('e'::"char", 'expired', 'dead', 'expired', 'its own time (expires_at) was over before a worker got it'),
    ('c'::"char", 'cancelled', 'dead', 'cancelled', 'somebody cancelled it before a worker got it'),
    ('p'::"char", 'replaced', 'replaced', null, 'a newer message of its unique key stands for it'),
    ('o'::"char", 'outdated', 'outdated', null, 'it was older than its subscription takes (max_age) before a worker got it')
$$;
comment on function trunq._outcomes is
  'How an attempt ends, by the letter of its receipt: the word for it, the state of the message then, and, where that ends it or its last attempt, the reason for which it is dead. A finished batch (b) is no attempt of a message.';

create or replace function trunq._states()
returns table (state text, is_open boolean, meaning text)
language sql immutable parallel safe as $$
  values
    ('scheduled', true, 'it is published later'),
    ('ready', true, 'it waits for a worker'),
    ('leased', true, 'a worker has it'),
    ('retrying', true, 'it waits for its next attempt'),
    ('parked', true, 'it waits until somebody resumes it'),
    ('done', false, 'it is handled'),
    ('outdated', false, 'it was passed over as too old'),
    ('dead', false, 'it was given up, and is kept'),
    ('replaced', false, 'another message of its unique key stands for it'),
    ('purged', false, 'it was dead, and is kept no longer')
$$;
comment on function trunq._states is 'The states of a message, for one shared subscription; is_open: it may still be handed out.';

create or replace function trunq._is_open(p_state text) returns boolean
language sql immutable parallel safe as $$ select exists (select from trunq._states() s where s.state operator(pg_catalog.=) p_state and s.is_open) $$;
comment on function trunq._is_open is 'Whether a message in this state may still be handed out.';

create or replace function trunq._vocabulary()
returns table (subject text, words text[])
language sql immutable parallel safe as $$
  values
    ('role', '{publisher,worker,reader,admin}'::text[]),
    ('mode', '{shared,exclusive}'),
    ('start', '{latest,earliest}'),
    ('backoff', '{constant,linear,exponential}'),
    ('lanes', '{priority,key,kind,"priority,key","priority,kind"}'),
    ('lane_policy', '{fair,priority,ranked}'),
    ('unique_policy', '{refuse,replace}'),
    ('unique_on', '{content}'),
    ('on_conflict', '{refuse,replace,raise}'),
    ('unique_until', '{leased,done}'),
    ('missed', '{skip,one,all}'),
    ('overlap', '{allow,skip}'),
    ('capture_format', '{plain,debezium}'),
    ('change', '{insert,update,delete,truncate}'),
    ('webhook_scheme', '{plain,github,stripe,slack,standard,shopify,meta}'),
    ('webhook_body', '{json,bytes}'),
    ('batch_left', '{finish,give_back}'),
    ('bell', '{held,publisher,sleeper}'),
    ('resumption', '{resumed,noted,repeated}'),
    ('severity', '{error,warning,unseen}'),
    ('last_word', '{drained,killed}'),
    ('worker_state', '{running,drained,killed,lost}'),
    ('sweep_act', '{requeue,purge,cancel}'),
    ('sweep_state', '{running,finished,stopped,dropped,refused}'),
    ('verb', '{publish,publish_many,publish_unique,lease,lease_ids,ack,retry,time_out,reject,release,extend,set_progress,next_batch,finish_batch}')
$$;
comment on function trunq._vocabulary is 'The words that an argument, or an answer, may be, by what they are about; verb: the functions that each queue has for itself.';

create or replace function trunq._words(p_subject text) returns text[]
language sql immutable parallel safe as $$ select v.words from trunq._vocabulary() v where v.subject operator(pg_catalog.=) p_subject $$;
comment on function trunq._words is 'The words about a subject.';

create or replace function trunq._list_choices(p_words text[]) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select array_to_string(p_words[:cardinality(p_words) - 1], ', ') || ' or ' || p_words[cardinality(p_words)]
$$;
comment on function trunq._list_choices is 'Words as a sentence lists them: a, b or c.';

create or replace function trunq._words_of_receipts() returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select jsonb_object_agg(o.receipt, o.outcome) from trunq._outcomes() o
$$;
comment on function trunq._words_of_receipts is 'The outcomes by their letters.';

create or replace function trunq._outcome(p_outcome "char") returns text
language sql immutable parallel safe as $$
  select case when p_outcome is not null then
    coalesce(trunq._words_of_receipts() operator(pg_catalog.->>) p_outcome::pg_catalog.text, trunq._fail_outcome(p_outcome)) end
$$;
comment on function trunq._outcome is 'The word for how an attempt ended that has a receipt of this letter; null for null.';

create or replace function trunq._fail_outcome(p_receipt "char") returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('data_corrupted', format('a receipt says that messages ended with "%s", and this version of trunq knows no such outcome', p_receipt),
    'a newer version may have written it: upgrade this database with the newest one (trunq db upgrade)');
end $$;
comment on function trunq._fail_outcome is 'Refuses (XX001) a receipt of a letter that has no word.';

create or replace function trunq._check_word(p_word text, p_words text[], p_unknown text) returns void
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
  if p_word <> all (p_words) then
    perform trunq._fail('TQ005', format(p_unknown, p_word), trunq._list_choices(p_words));
  end if;
end $$;
comment on function trunq._check_word is 'Refuses (TQ005) a word that is not among these; null passes.';
