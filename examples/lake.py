from pyspark.sql.functions import from_json

from trunq import spark

session = spark.session()  # finds Java; knows format("trunq") and format("trunq_delta")
messages = (
    session.readStream.format("trunq")
    .schema("id bigint, kind string, payload string, created_at timestamp")  # only what you need
    .option("queue", "orders")
    .option("subscription", "lake")  # made at the first run; keeps the position
    .option("startingOffsets", "earliest")  # the first run reads what is there
    .load()
)
orders = messages.select("id", "kind", "created_at", from_json("payload", "order bigint").alias("json"))
query = (
    orders.select("id", "kind", "created_at", "json.order")
    .writeStream.format("trunq_delta")
    .option("checkpointLocation", "lake/checkpoint")
    .trigger(availableNow=True)  # reads all there is and ends; processingTime="5 seconds" goes on
    .start("lake/orders")
)
spark.finish(query)

kinds = spark.read_delta(session, "lake/orders").groupBy("kind").count()
kinds.show()
spark.write_table(kinds, "order_kinds")  # into Postgres
