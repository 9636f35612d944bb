"""How values travel between Python and Postgres: names, JSON, arrays, lines of COPY.

    name       what may be the name of a queue or subscription
    scalar     lengths of time, moments, numbers and text
    json       payloads, headers and results, both ways
    array      lists, as Postgres' arrays
    copy       many messages, column by column: as arrays, or as lines of COPY
    reference  errors, with what refers to them

All is checked here, before the database is asked: an error names the argument and the place in it.
"""
