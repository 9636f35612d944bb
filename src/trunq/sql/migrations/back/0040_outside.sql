drop table trunq.reminder;
drop table trunq.public_key;
