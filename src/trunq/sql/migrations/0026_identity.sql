-- Rows of these are deleted, and of a publication for all tables Postgres refuses that where nothing tells which row it was.
alter table trunq.purged replica identity full;
alter table trunq.unhandled replica identity full;
