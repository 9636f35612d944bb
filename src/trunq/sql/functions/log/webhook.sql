-- A webhook is a path, /hook/<name>, at which a server (src/trunq/webhook) takes signed requests and publishes each as a message. Its row says
-- into which queue, how the request is signed, and which variable in the environment of the server has the secret: no secret lies here.
-- The server works as a role that may publish to the queue, and no more; whoever may publish to one reads the rows.

create or replace function trunq.create_webhook(
  p_webhook text, p_queue text, p_secret text, p_scheme text default 'plain', p_kind text default null, p_header text default null,
  p_prefix text default null, p_timestamp_header text default null, p_tolerance interval default null, p_id_header text default null,
  p_headers text[] default null, p_body text default 'json', p_max_bytes integer default 1048576
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_is_new boolean;
begin
  perform trunq._check_name('webhook', p_webhook);
  perform trunq._check_webhook(p_webhook, p_secret, p_scheme, p_body, p_max_bytes);
  perform trunq._check_header_names(p_webhook, array[p_header, p_timestamp_header, p_id_header], p_headers);
  perform trunq._check_interval('the tolerance of a webhook', p_tolerance, '0');
  if p_scheme <> 'plain' and num_nonnulls(p_header, p_prefix, p_timestamp_header, p_id_header) > 0 then
    perform trunq._fail('TQ005', format('webhook "%s": the scheme %s says by itself which headers it has', p_webhook, p_scheme),
      'header, prefix, timestamp_header and id_header are for the scheme plain');
  elsif p_scheme = 'standard' and p_tolerance <> '5 minutes' then
    perform trunq._fail('TQ005', format('webhook "%s": the scheme standard has a tolerance of 5 minutes, not %s', p_webhook, p_tolerance), 'leave tolerance out');
  end if;
  insert into trunq.webhook as w (name, queue_id, kind, secret, scheme, header, prefix, timestamp_header, tolerance, id_header, headers, body, max_bytes)
  values (p_webhook, v_queue.queue_id, p_kind, p_secret, p_scheme, p_header, p_prefix, p_timestamp_header, coalesce(p_tolerance, '5 minutes'), p_id_header,
    coalesce(p_headers, '{}'), p_body, p_max_bytes)
  on conflict (name) do update set queue_id = excluded.queue_id, kind = excluded.kind, secret = excluded.secret, scheme = excluded.scheme,
    header = excluded.header, prefix = excluded.prefix, timestamp_header = excluded.timestamp_header, tolerance = excluded.tolerance,
    id_header = excluded.id_header, headers = excluded.headers, body = excluded.body, max_bytes = excluded.max_bytes
  returning w.xmax = 0 into v_is_new;
  return v_is_new;
end $$;
comment on function trunq.create_webhook is
  'Makes a webhook, or changes the one of that name: signed requests to /hook/<name> of a server (trunq webhook serve) become messages of a queue, of kind p_kind. To run a pipeline: the queue pipelines, and its name as p_kind. p_secret: the name of the variable in the environment of the server that has the secret, not the secret; NAME_2 to NAME_9 have further ones, while one takes the place of another. p_scheme: plain (HMAC-SHA256 of the body in p_header, X-Signature by default, after p_prefix; with p_timestamp_header, of time and body with a dot between), github, stripe, slack, standard (Standard Webhooks), shopify or meta. A time that is signed may be p_tolerance off (5 minutes). p_id_header: which header names a delivery; in a queue with unique keys, a delivery becomes one message within three days. p_max_bytes: how large a body may be (1 MiB). p_headers: those that the message keeps. p_body: json (the payload) or bytes. A server knows of it within seconds.
Returns: true when it was made.
Raises: TQ001, TQ004, TQ005.
Locks: the webhook.';

create or replace function trunq.drop_webhook(p_webhook text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('drop_webhook', null, jsonb_build_object('webhook', p_webhook));
  delete from trunq.webhook w where w.name = p_webhook;
  return found;
end $$;
comment on function trunq.drop_webhook is
  'Drops a webhook: servers answer 404 for it within seconds.
Returns: false when there was none of that name.
Locks: the webhook.';

create or replace function trunq.list_webhooks()
returns table (
  webhook text, queue text, kind text, secret text, scheme text, header text, prefix text, timestamp_header text, tolerance interval, id_header text,
  headers text[], body text, max_bytes integer, is_unique boolean, created_at timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select w.name, q.name, w.kind, w.secret, w.scheme, w.header, w.prefix, w.timestamp_header, w.tolerance, w.id_header, w.headers, w.body, w.max_bytes,
    q.unique_policy is not null, w.created_at
  from trunq.webhook w join trunq.queue q on q.queue_id = w.queue_id order by w.name
$$;
comment on function trunq.list_webhooks is
  'Webhooks by name. secret: the name of a variable, not the secret; is_unique: whether its queue has unique keys, by which a delivery becomes one message.';

create or replace function trunq._check_header_names(p_webhook text, p_some text[], p_kept text[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_wrong text;
begin
  if array_ndims(p_kept) > 1 or array_position(p_kept, null) is not null then
    perform trunq._fail('TQ005', format('webhook "%s": headers is a list of names, without null', p_webhook));
  end if;
  select h into v_wrong from unnest(p_some || p_kept) h where h !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,200}$' limit 1;
  if found then
    perform trunq._fail('TQ005', format('webhook "%s": no request has a header "%s"', p_webhook, left(v_wrong, 100)), 'a name as X-Signature');
  end if;
end $$;
comment on function trunq._check_header_names is 'Refuses (TQ005) what no header is called.';

create or replace function trunq._check_webhook(p_webhook text, p_secret text, p_scheme text, p_body text, p_max_bytes integer) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_secret is null or p_secret !~ '^[A-Za-z_][A-Za-z0-9_]{0,100}$' then
    perform trunq._fail('TQ005', format('webhook "%s" needs the name of a variable that has its secret', p_webhook),
      'a name as GITHUB_SECRET, which the server has in its environment; the secret itself does not belong here');
  elsif p_scheme is null or p_scheme <> all (trunq._words('webhook_scheme')) then
    perform trunq._fail('TQ005', format('webhook "%s": there is no scheme "%s"', p_webhook, coalesce(p_scheme, '')), trunq._list_choices(trunq._words('webhook_scheme')));
  elsif p_body is null or p_body <> all (trunq._words('webhook_body')) then
    perform trunq._fail('TQ005', format('webhook "%s": a body is json or bytes, not "%s"', p_webhook, coalesce(p_body, '')));
  elsif p_max_bytes is null or p_max_bytes not between 1 and 16000000 then
    perform trunq._fail('TQ005', format('webhook "%s": max_bytes is from 1 to 16000000, not %s', p_webhook, coalesce(p_max_bytes::text, 'null')));
  end if;
end $$;
comment on function trunq._check_webhook is 'Refuses (TQ005) what cannot be a webhook.';
