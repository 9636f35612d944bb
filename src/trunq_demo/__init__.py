"""A demonstration of trunq, end to end, on real input: `trunq demo`.

flights   the input: 336,776 flights that left New York in 2013
job       what a worker does with one of them
publisher the year replayed into the queue
pipeline  Spark: the same queue into a lake table and an aggregate
fleet     the processes of a run: started, watched, ended (parent, member: how they end with it)
act       the second act: pipelines into a lake, whose runner is killed once
          (lake: the pipelines; month, weather, writer, api: what they read; refund: workers of their queue;
          sums: its numbers, twice; board: airports, customers of one pipeline; customer: what became of each;
          chapter: its part of the report)
evidence  what the run left behind, counted (collect) and compared with the input (expectation)
report    the page that shows it (figure: its pictures)
run       all of it, in order
command   the command `trunq demo`, which the command trunq finds by an entry point
"""
