"""What becomes of the rows of a run on their way. As data, with Spark and without:

    again      rows of the quarantine, sent again
    column     steps of `columns`, batch by batch
    ruling     checks as data: which rows of a batch break one
    reference  of these refers_to, which asks Postgres
    text       values as texts, which are hashed and compared
    local      both without Spark
    twin       unique without Spark
    spread     unique with Spark

What Spark does: one pass over the rows.

    fused      without sql and transform: each task reads its share, works on it and stages it
    share      each task reads its share of the slice
    landing    one task reads what only reading tells the columns of into files, which others read
    frame      these as a DataFrame, and the lookups
    statement  sql and transform, from DataFrame to DataFrame
    rule       checks: one more column, of the names of those that a row breaks
    stager     each task keeps broken rows out, and stages the others under a part of its own
    staging    the whole, on the driver

A task that Spark repeats writes under another part: the list of parts that the driver gets has those of tasks
that came to their end, each once.
"""
