"""Rows as Arrow batches: out of queries, and into tables and lakes.

reader     rows of a query, by ADBC or out of Python's
value      Arrow and Postgres: which type is which, and rows as JSON
copy       batches into a table by COPY
catalog    what the database says of a table
table      how a table has to be that takes rows, and what is made of it where it is missing
stage      where rows lie that nobody sees yet
mark       how far whoever writes has come, in the transaction that takes the rows
statement  how a table takes rows from a stage
parquet    files of Parquet in hive directories, and their statistics
delta      a table of such files: its log, and a disk that takes nothing

Sinks of pipelines and of Spark are built of these.
"""
