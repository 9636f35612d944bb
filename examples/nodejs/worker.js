// A worker of the queue "orders" in Node.js. docs/client/any-language.md explains each step.
//
//     npm install
//     node worker.js
//
// The database is that of PGHOST, PGDATABASE, PGUSER and so on. A worker that is the only one of its name (WORKER) gets back at
// once what its former self had leased. SIGTERM lets it finish the message it works on.

import { hostname } from "node:os";
import pg from "pg";

const NAME = process.env.WORKER ?? `${hostname()}-${process.pid}`;
const LEASE_SECONDS = Number(process.env.LEASE_SECONDS ?? 60);
const LEASE_TIME = `${LEASE_SECONDS} seconds`;
const POLL = 5000;

/** Thrown by a handler: the message is dead, with this reason. */
class Reject extends Error {}

/** The handlers, by kind. What a handler writes through `connection` commits together with the ack. */
const handlers = {
  async placed(message, connection) {
    if (!message.payload?.order) throw new Reject("the payload names no order");
    await connection.query("insert into invoice (order_id) values ($1)", [message.payload.order]);
  },
};

const session = new pg.Client(); // leases, extensions and the bell: each statement is a transaction of its own
const work = new pg.Client(); // the transactions of the handlers
let isStopping = false;
let holdsBell = false;
let wake = () => {};

async function call(connection, statement, ...values) {
  return (await connection.query(statement, values)).rows;
}

async function lease() {
  return call(
    session,
    `select lease_id, token, id, kind, payload, attempt from trunq_queue.orders_lease('default', $1, 10, $2)`,
    NAME,
    LEASE_TIME,
  );
}

/** Messages, or none after a sleep: woken by a publisher, by another worker that gave the bell away, or by the poll. */
async function next() {
  const messages = await lease();
  if (messages.length > 0) return messages;
  const woken = new Promise((resolve) => (wake = resolve));
  const [{ take_bell: bell }] = await call(session, "select trunq.take_bell('orders')");
  holdsBell = bell === "held";
  // Once more, now that publishers ring: what was committed before would ring no bell.
  const missed = await lease();
  if (missed.length === 0 && !isStopping) {
    const timer = setTimeout(wake, bell === "publisher" ? 100 : POLL);
    await woken;
    clearTimeout(timer);
  }
  if (holdsBell) {
    holdsBell = false;
    await call(session, "select trunq.give_bell('orders')");
  }
  return missed;
}

async function answer(message) {
  const held = [message.lease_id, message.token, [message.id]];
  try {
    await work.query("begin");
    const handler = handlers[message.kind];
    if (!handler) throw new Error(`no handler for kind ${message.kind}`);
    await handler(message, work);
    await call(work, "select trunq_queue.orders_ack('default', $1, $2, $3)", ...held);
    await work.query("commit");
  } catch (error) {
    await work.query("rollback");
    if (error.code === "TQ003") throw error;
    const verb = error instanceof Reject ? "reject" : "retry";
    await call(work, `select trunq_queue.orders_${verb}('default', $1, $2, $3, $4)`, ...held, [String(error)]);
  }
}

async function handle(messages) {
  const { lease_id, token } = messages[0];
  // Errors of an extension need no care here: when the lease is lost, the answer hears of it too.
  const heartbeat = setInterval(
    () => call(session, "select trunq_queue.orders_extend('default', $1, $2, $3)", lease_id, token, LEASE_TIME).catch(() => {}),
    (LEASE_SECONDS * 1000) / 3,
  );
  try {
    while (messages.length > 0 && !isStopping) await answer(messages.shift());
    if (messages.length > 0) {
      const ids = messages.map((message) => message.id);
      await call(work, "select trunq_queue.orders_release('default', $1, $2, $3)", lease_id, token, ids);
    }
  } catch (error) {
    if (error.code !== "TQ003") throw error;
    console.warn(error.message); // the others have the messages now
  } finally {
    clearInterval(heartbeat);
  }
}

await session.connect();
await work.connect();
session.on("notification", ({ payload, processId }) => {
  if (holdsBell ? payload === "m" : payload === "bell" && processId !== session.processID) wake();
});
process.on("SIGTERM", () => {
  isStopping = true;
  wake();
});

const [{ queue_channel: channel }] = await call(session, "select trunq.queue_channel('orders')");
await session.query(`listen ${channel}`);
if (process.env.WORKER) await call(session, "select trunq.reclaim('orders', 'default', $1)", NAME);
console.log(`${NAME} serves the queue orders`);
while (!isStopping) {
  const messages = await next();
  if (messages.length > 0) await handle(messages);
}
await session.end();
await work.end();
