-- Webhooks (functions/log/webhook.sql): which requests become messages of which queue.
create table trunq.webhook (
  name text primary key
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  queue_id integer not null references trunq.queue on delete cascade,
  kind text,
  secret text not null,
  scheme text not null
    constraint scheme_is_known check (scheme in ('plain', 'github', 'stripe', 'slack')),
  header text,
  prefix text,
  timestamp_header text,
  tolerance interval not null,
  id_header text,
  headers text[] not null,
  body text not null
    constraint body_is_known check (body in ('json', 'bytes')),
  max_bytes integer not null
    constraint max_bytes_is_positive check (max_bytes > 0),
  created_at timestamptz not null default clock_timestamp()
);
create index webhook_queue on trunq.webhook (queue_id);
comment on table trunq.webhook is 'One row a webhook: a path at which requests become messages.';
comment on column trunq.webhook.secret is 'The name of the variable that has the secret, in the environment of the server. Never the secret.';
comment on column trunq.webhook.header is 'Which header has the signature, where scheme is plain.';
