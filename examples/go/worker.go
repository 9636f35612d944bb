// A worker of the queue "orders" in Go. docs/client/any-language.md explains each step.
//
//	go mod tidy
//	go run .
//
// The database is that of PGHOST, PGDATABASE, PGUSER and so on. A worker that is the only one of its name (WORKER) gets back at
// once what its former self had leased. SIGTERM lets it finish the message it works on.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lib/pq"
)

const (
	leaseTime = "60 seconds"
	heartbeat = 20 * time.Second
	poll      = 5 * time.Second
)

// Message is one message under a lease.
type Message struct {
	LeaseID, Token, ID int64
	Kind               string
	Payload            json.RawMessage
	Attempt            int
}

// Reject is returned by a handler: the message is dead, with this reason.
type Reject string

func (r Reject) Error() string { return string(r) }

// The handlers, by kind. What a handler writes through tx commits together with the ack.
var handlers = map[string]func(context.Context, Message, *sql.Tx) error{
	"placed": func(ctx context.Context, message Message, tx *sql.Tx) error {
		var placed struct{ Order int64 }
		if err := json.Unmarshal(message.Payload, &placed); err != nil || placed.Order == 0 {
			return Reject("the payload names no order")
		}
		_, err := tx.ExecContext(ctx, "insert into invoice (order_id) values ($1)", placed.Order)
		return err
	},
}

// Worker leases, handles and answers.
type Worker struct {
	name     string
	db       *sql.DB   // transactions of the handlers, extensions and answers
	session  *sql.Conn // leases and the bell, which belongs to one session
	listener *pq.Listener
	pid      int
}

// lease is a statement outside a transaction, so it commits at once.
func (w *Worker) lease() ([]Message, error) {
	rows, err := w.session.QueryContext(context.Background(),
		`select lease_id, token, id, coalesce(kind, ''), coalesce(payload, 'null'), attempt
		 from trunq_queue.orders_lease('default', $1, 10, $2)`, w.name, leaseTime)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var messages []Message
	for rows.Next() {
		var m Message
		if err := rows.Scan(&m.LeaseID, &m.Token, &m.ID, &m.Kind, &m.Payload, &m.Attempt); err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, rows.Err()
}

// next returns messages, or none after a sleep: woken by a publisher, by another worker that gave the bell away, or by the poll.
func (w *Worker) next(ctx context.Context) ([]Message, error) {
	messages, err := w.lease()
	if err != nil || len(messages) > 0 {
		return messages, err
	}
	var bell string
	if err := w.session.QueryRowContext(context.Background(), "select trunq.take_bell('orders')").Scan(&bell); err != nil {
		return nil, err
	}
	// Once more, now that publishers ring: what was committed before would ring no bell.
	messages, err = w.lease()
	if err == nil && len(messages) == 0 {
		w.sleep(ctx, bell)
	}
	if bell == "held" {
		if _, given := w.session.ExecContext(context.Background(), "select trunq.give_bell('orders')"); err == nil {
			err = given
		}
	}
	return messages, err
}

func (w *Worker) sleep(ctx context.Context, bell string) {
	wanted, longest := "bell", poll
	switch bell {
	case "held":
		wanted = "m"
	case "publisher":
		longest = 100 * time.Millisecond
	}
	timer := time.NewTimer(longest)
	defer timer.Stop()
	for {
		select {
		case heard := <-w.listener.Notify:
			// nil: the listener lost its connection and has a new one. Look again.
			if heard == nil || heard.Extra == wanted && heard.BePid != w.pid {
				return
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// handle works on the messages of one lease, and extends it meanwhile.
func (w *Worker) handle(stopping context.Context, messages []Message) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first := messages[0]
	go func() {
		for ticker := time.NewTicker(heartbeat); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				_, err := w.db.ExecContext(ctx, "select trunq_queue.orders_extend('default', $1, $2, $3)",
					first.LeaseID, first.Token, leaseTime)
				if isLeaseLost(err) {
					cancel() // the others have the messages now
				}
			}
		}
	}()
	for i, message := range messages {
		if stopping.Err() != nil {
			return w.release(messages[i:])
		}
		if err := w.answer(ctx, message); isLeaseLost(err) || ctx.Err() != nil {
			log.Printf("lease %d is lost", first.LeaseID)
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (w *Worker) answer(ctx context.Context, message Message) error {
	failed := w.run(ctx, message)
	if failed == nil || isLeaseLost(failed) || ctx.Err() != nil {
		return failed
	}
	verb := "retry"
	var reject Reject
	if errors.As(failed, &reject) {
		verb = "reject"
	}
	_, err := w.db.ExecContext(ctx, fmt.Sprintf("select trunq_queue.orders_%s('default', $1, $2, $3, $4)", verb),
		message.LeaseID, message.Token, pq.Array([]int64{message.ID}), pq.Array([]string{failed.Error()}))
	return err
}

// run commits the handler's writes and the ack together, or neither.
func (w *Worker) run(ctx context.Context, message Message) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	handler, ok := handlers[message.Kind]
	if !ok {
		return fmt.Errorf("no handler for kind %q", message.Kind)
	}
	if err := handler(ctx, message, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "select trunq_queue.orders_ack('default', $1, $2, $3)",
		message.LeaseID, message.Token, pq.Array([]int64{message.ID})); err != nil {
		return err
	}
	return tx.Commit()
}

func (w *Worker) release(messages []Message) error {
	var ids []int64
	for _, message := range messages {
		ids = append(ids, message.ID)
	}
	_, err := w.db.Exec("select trunq_queue.orders_release('default', $1, $2, $3)",
		messages[0].LeaseID, messages[0].Token, pq.Array(ids))
	return err
}

func isLeaseLost(err error) bool {
	var refused *pq.Error
	return errors.As(err, &refused) && refused.Code == "TQ003"
}

func open(ctx context.Context, name string) (*Worker, error) {
	db, err := sql.Open("postgres", "")
	if err != nil {
		return nil, err
	}
	session, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &Worker{name: name, db: db, session: session, listener: pq.NewListener("", time.Second, time.Minute, nil)}
	var channel string
	if err := session.QueryRowContext(ctx, "select trunq.queue_channel('orders'), pg_backend_pid()").Scan(&channel, &w.pid); err != nil {
		return nil, err
	}
	return w, w.listener.Listen(channel)
}

func main() {
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	host, _ := os.Hostname()
	name, isNamed := os.LookupEnv("WORKER")
	if !isNamed {
		name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	worker, err := open(stopping, name)
	if err != nil {
		log.Fatal(err)
	}
	if isNamed {
		if _, err := worker.db.Exec("select trunq.reclaim('orders', 'default', $1)", name); err != nil {
			log.Fatal(err)
		}
	}
	log.Printf("%s serves the queue orders", name)
	for stopping.Err() == nil {
		messages, err := worker.next(stopping)
		if err == nil && len(messages) > 0 {
			err = worker.handle(stopping, messages)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
