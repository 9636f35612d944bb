<?php
// A worker of the queue "orders" in PHP, with PDO. docs/client/any-language.md explains each step.
//
//     php worker.php
//
// The database is that of PGHOST, PGDATABASE, PGUSER and so on. PHP does one thing at a time: so this worker leases one message
// at a time, and a handler that may take longer than the lease calls extend() now and then.

declare(strict_types=1);

const LEASE_TIME = '60 seconds';
const POLL = 5000;

/** Thrown by a handler: the message is dead, with this reason. */
class Reject extends Exception {}

$name = getenv('WORKER') ?: gethostname() . '-' . getmypid();
$database = new PDO('pgsql:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$isStopping = false;
if (function_exists('pcntl_signal')) {
    pcntl_async_signals(true);
    pcntl_signal(SIGTERM, function () use (&$isStopping) { $isStopping = true; });
}

/** The handlers, by kind. What a handler writes commits together with the ack. */
$handlers = [
    'placed' => function (array $message) use ($database): void {
        $payload = json_decode($message['payload'], true);
        if (!isset($payload['order'])) {
            throw new Reject('the payload names no order');
        }
        call($database, 'insert into invoice (order_id) values (?)', $payload['order']);
    },
];

function call(PDO $database, string $statement, mixed ...$values): array
{
    $prepared = $database->prepare($statement);
    $prepared->execute($values);
    return $prepared->fetchAll(PDO::FETCH_ASSOC);
}

function lease(PDO $database, string $name): ?array
{
    // Outside a transaction, PDO commits each statement at once.
    return call(
        $database,
        "select lease_id, token, id, kind, payload, attempt from trunq_queue.orders_lease('default', ?, 1, ?)",
        $name,
        LEASE_TIME,
    )[0] ?? null;
}

/** For a long handler, between two steps: throws when the lease is lost. */
function extend(PDO $database, array $message): void
{
    call($database, "select trunq_queue.orders_extend('default', ?, ?, ?)", $message['lease_id'], $message['token'], LEASE_TIME);
}

/** A message, or none after a sleep: woken by a publisher, by another worker that gave the bell away, or by the poll. */
function next_message(PDO $database, string $name): ?array
{
    $message = lease($database, $name);
    if ($message !== null) {
        return $message;
    }
    $bell = call($database, "select trunq.take_bell('orders') as bell")[0]['bell'];
    // Once more, now that publishers ring: what was committed before would ring no bell.
    $message = lease($database, $name);
    if ($message === null) {
        sleep_until_rung($database, $bell);
    }
    if ($bell === 'held') {
        call($database, "select trunq.give_bell('orders')");
    }
    return $message;
}

function sleep_until_rung(PDO $database, string $bell): void
{
    $until = microtime(true) + ($bell === 'publisher' ? 0.1 : POLL / 1000);
    while (($left = (int) (($until - microtime(true)) * 1000)) > 0) {
        $heard = $database->pgsqlGetNotify(PDO::FETCH_ASSOC, $left);
        $wanted = $bell === 'held' ? 'm' : 'bell';
        if ($heard !== false && $heard['payload'] === $wanted && $heard['pid'] !== $database->pgsqlGetPid()) {
            return;
        }
    }
}

function answer(PDO $database, array $handlers, array $message): void
{
    $held = [$message['lease_id'], $message['token'], '{' . $message['id'] . '}'];
    try {
        $database->beginTransaction();
        $handler = $handlers[$message['kind']] ?? throw new Exception("no handler for kind {$message['kind']}");
        $handler($message);
        call($database, "select trunq_queue.orders_ack('default', ?, ?, ?)", ...$held);
        $database->commit();
    } catch (Throwable $error) {
        $database->rollBack();
        if ($error->getCode() === 'TQ003') {
            fwrite(STDERR, $error->getMessage() . "\n"); // the others have the message now
            return;
        }
        $verb = $error instanceof Reject ? 'reject' : 'retry';
        call($database, "select trunq_queue.orders_$verb('default', ?, ?, ?, array[?])", ...[...$held, $error->getMessage()]);
    }
}

$channel = call($database, "select trunq.queue_channel('orders') as channel")[0]['channel'];
$database->exec("listen $channel");
if (getenv('WORKER')) {
    call($database, "select trunq.reclaim('orders', 'default', ?)", $name);
}
echo "$name serves the queue orders\n";
while (!$isStopping) {
    $message = next_message($database, $name);
    if ($message !== null) {
        answer($database, $handlers, $message);
    }
}
