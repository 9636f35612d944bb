drop table trunq.forwarded;
