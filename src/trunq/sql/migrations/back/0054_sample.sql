drop table trunq.sample;
