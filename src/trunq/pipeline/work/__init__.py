"""What Spark does for a run: one pass over its rows.

    share      each task reads its share of the slice
    frame      these as a DataFrame, and the lookups
    statement  sql and transform, from DataFrame to DataFrame
    rule       checks: one more column, of the names of those that a row breaks
    stager     each task keeps broken rows out, and stages the others under a part of its own
    staging    the whole, on the driver

A task that Spark repeats writes under another part: the list of parts that the driver gets has those of tasks
that came to their end, each once.
"""
