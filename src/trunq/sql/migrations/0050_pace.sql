-- The pace of calls to one host with the same credentials (functions/pipeline/pace.sql), and further schemes of webhooks.
create table trunq.pace (
  name text primary key,
  next_at timestamptz not null,
  held_until timestamptz
);
comment on table trunq.pace is 'One row for each host and its credentials that pipelines call: from when on there is a free moment for a request.';
comment on column trunq.pace.name is 'The host, and a digest of the credentials, from which nobody reads them.';
comment on column trunq.pace.held_until is 'Until when the API wants no request, as it said last.';
alter table trunq.webhook
  drop constraint scheme_is_known,
  add constraint scheme_is_known check (scheme in ('plain', 'github', 'stripe', 'slack', 'standard', 'shopify', 'meta'));
