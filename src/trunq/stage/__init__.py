"""Rows on their way into Postgres: staged where nobody sees them, taken with a mark in one transaction.

arrow      Arrow and Postgres: which type is which, and rows as JSON
copy       Arrow batches into a table by COPY
catalog    what the database says of a table
mark       how far whoever writes has come, in the transaction that takes the rows
statement  how a table takes rows from a stage

Sinks of pipelines and of Spark are built of these.
"""
