-- Run once, after 10-trunq.sql, when the image makes its database. Yours to change: the queue of shop.py.
select trunq.create_queue('orders');
