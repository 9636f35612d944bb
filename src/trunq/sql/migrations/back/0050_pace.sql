do $$
declare
  v_webhook text;
  v_pipeline text;
begin
  select p.name into v_pipeline from trunq.pipeline p
  where p.definition->'source'->>'format' = 'http' and (p.definition->'source' ?| '{each,after,oauth,errors}' or p.definition->'source'->'cursor' ? 'more'
      or p.definition->'source'->'since' ?| '{start,lag,format,write}') or p.definition->'sink'->>'format' = 'http' and p.definition->'sink' ?| '{oauth,sign}'
  order by p.parent_id is not null, p.name limit 1;
  if found then
    raise exception 'pipeline "%" asks its API in a way that the older release does not know', v_pipeline
      using hint = 'create it without each, after, oauth, errors, sign, cursor.more and since.start, lag, format and write, or drop it';
  end if;
  select w.name into v_webhook from trunq.webhook w where w.scheme in ('standard', 'shopify', 'meta') order by w.name limit 1;
  if found then
    raise exception 'webhook "%" has a scheme that the older release does not know', v_webhook using hint = format('drop it first: trunq webhook drop %s', v_webhook);
  end if;
end $$;
alter table trunq.webhook
  drop constraint scheme_is_known,
  add constraint scheme_is_known check (scheme in ('plain', 'github', 'stripe', 'slack'));
drop table trunq.pace;
