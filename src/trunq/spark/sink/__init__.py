"""What Spark computed, written into Postgres."""
