"""`format("trunq_delta")`: streaming queries into Delta tables, and such tables as DataFrames."""
