drop table trunq.sweep_stop;
drop table trunq.sweep;
