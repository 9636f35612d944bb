"""The worker of compose.yml: yours to replace."""

import trunq

worker = trunq.Worker("orders")


@worker.handler("placed")
async def place(message):
    return {"placed": message.payload["order"]}
