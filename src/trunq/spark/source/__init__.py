"""`format("trunq")`: a queue as a batch or streaming source of Spark.

format    the data source and its options (option), the columns of a message (column)
reader    reading a queue once; stream: following it
log       what the driver asks of a queue; range: which rows lie between two ticks, cut into parts
fetch     reading a part, in Spark's workers
position  moving a subscription when its query has ended
"""
