-- A dump restored into another cluster carries transaction ids of the old one. Into a cluster with lower ids, every new
-- publish would look as if it had been read long ago and go undelivered in silence. So positions are used only in the
-- cluster they were made in, checked once a session; trunq.rebase() starts them afresh.

create or replace function trunq._check_cluster() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.cluster_checked', true) = 'yes' then
    return;
  end if;
  if (select c.system_identifier from trunq.cluster c)
      is distinct from (select s.system_identifier from pg_control_system() s) then
    perform trunq._fail('TQ010',
      'this database was restored into another Postgres cluster: transaction ids here do not continue those of its positions',
      'stop all workers and run "select trunq.rebase()" once: it publishes again what was not answered and starts the positions afresh');
  end if;
  perform set_config('trunq.cluster_checked', 'yes', false);
end $$;
comment on function trunq._check_cluster() is 'Refuses (TQ010) to work in a restored database, by the identifier of the cluster; looks once a session.';

create or replace function trunq._check_position(p_hi pg_snapshot, p_now pg_snapshot) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if pg_snapshot_xmax(p_hi) > pg_snapshot_xmax(p_now) then
    perform trunq._fail('TQ010',
      format('a position lies ahead of this cluster''s transaction ids (%s, now %s): the database was restored from another cluster',
        pg_snapshot_xmax(p_hi), pg_snapshot_xmax(p_now)),
      'stop all workers and run "select trunq.rebase()" once: it publishes again what was not answered and starts the positions afresh');
  end if;
end $$;
comment on function trunq._check_position(pg_snapshot, pg_snapshot) is 'Refuses (TQ010) a position ahead of the transaction ids of this cluster.';
