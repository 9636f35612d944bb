-- A clock may go back: of leases made after the reaper's last look, none may be judged by its expiry alone.

alter table trunq.mark add column lease_id bigint not null default 0;
comment on column trunq.mark.lease_id is 'reap: the newest lease when it looked; what is newer it has not seen, whatever its expiry.';
