drop table trunq.former;
