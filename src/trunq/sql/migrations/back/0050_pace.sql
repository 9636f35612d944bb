do $$
declare
  v_webhook text;
begin
  select w.name into v_webhook from trunq.webhook w where w.scheme in ('standard', 'shopify', 'meta') order by w.name limit 1;
  if found then
    raise exception 'webhook "%" has a scheme that the older release does not know', v_webhook using hint = format('drop it first: trunq webhook drop %s', v_webhook);
  end if;
end $$;
alter table trunq.webhook
  drop constraint scheme_is_known,
  add constraint scheme_is_known check (scheme in ('plain', 'github', 'stripe', 'slack'));
drop table trunq.pace;
