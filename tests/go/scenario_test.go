// Package conformance holds a broker to what the official Go client of Apache Pulsar needs. See tests/README.md.
package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	// patience is how long a scenario waits for what must come. Only a fault waits it out.
	patience = 40 * time.Second
	// laterPatience is the same where the wait is expected to be in vain.
	laterPatience = 3 * time.Second
	// quiet is how long a scenario listens for what must not come. A slow machine can hide a fault in it, never make one.
	quiet = 300 * time.Millisecond
)

// under is the broker that scenarios share, and external whether it is a running one that must not be restarted.
var (
	under    address
	external bool
)

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	under = address{os.Getenv("PULSAR_URL"), strings.TrimRight(os.Getenv("PULSAR_ADMIN_URL"), "/")}
	if external = under.url != ""; external {
		if under.admin == "" {
			fmt.Fprintln(os.Stderr, "PULSAR_URL needs PULSAR_ADMIN_URL=http://HOST:PORT as well")
			return 2
		}
		return m.Run()
	}
	broker, err := newBroker(0, 0)
	if err == nil {
		err = broker.start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	under = broker.address
	code := m.Run()
	if code != 0 {
		fmt.Fprintln(os.Stderr, broker.log())
	}
	if err := broker.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code == 0 {
		broker.remove()
	}
	return code
}

// scenario is one test: a topic of its own, helpers that fail it, and what it has to close.
type scenario struct {
	testing.TB
	at       address
	topic    string
	client   pulsar.Client
	patience time.Duration
	// later is what Vela does not serve yet; failures then go into reason.
	later  string
	reason string
}

// run runs a scenario beside others.
func run(t *testing.T, body func(*scenario)) {
	t.Parallel()
	body(newScenario(t, ""))
}

// later runs a scenario of what Vela does not serve yet. Strict: it must fail against Vela, so the day it works the mark
// has to go. Against another broker it is an ordinary scenario.
func later(t *testing.T, feature string, body func(*scenario)) {
	t.Parallel()
	if external {
		body(newScenario(t, ""))
		return
	}
	done := make(chan *scenario)
	go func() {
		s := newScenario(t, feature)
		defer func() { done <- s }()
		body(s)
	}()
	if s := <-done; s.reason == "" {
		t.Errorf("works now: write run instead of later(%q)", feature)
	} else {
		t.Skipf("not served by Vela yet: %s (%s)", feature, s.reason)
	}
}

func newScenario(t *testing.T, feature string) *scenario {
	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix)
	name := strings.ReplaceAll(t.Name(), "/", "-") + "-" + hex.EncodeToString(suffix)
	s := &scenario{TB: t, at: under, topic: "persistent://public/default/" + name, patience: patience, later: feature}
	if feature != "" {
		s.patience = laterPatience
	}
	s.client = s.newClient()
	return s
}

// Fatalf fails the scenario, or notes the failure where it is expected.
func (s *scenario) Fatalf(format string, arguments ...any) {
	s.Helper()
	if s.later == "" {
		s.TB.Fatalf(format, arguments...)
	}
	if s.reason == "" {
		s.reason = fmt.Sprintf(format, arguments...)
	}
	runtime.Goexit()
}

func (s *scenario) must(err error, what string, arguments ...any) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", fmt.Sprintf(what, arguments...), err)
	}
}

func (s *scenario) equal(got, want any, what string, arguments ...any) {
	s.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		s.Fatalf("%s: got %s, want %s", fmt.Sprintf(what, arguments...), g, w)
	}
}

// refused requires an error that names all of words.
func (s *scenario) refused(err error, what string, words ...string) {
	s.Helper()
	if err == nil {
		s.Fatalf("%s must be refused", what)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			s.Fatalf("%s must be refused with %q, it was with: %v", what, word, err)
		}
	}
}

// until polls until the condition holds.
func (s *scenario) until(what string, condition func() bool) {
	s.Helper()
	for deadline := time.Now().Add(s.patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("not within %v: %s", s.patience, what)
		}
	}
}

func (s *scenario) newClient() pulsar.Client {
	s.Helper()
	output := io.Discard
	if os.Getenv("VELA_CLIENT_LOG") != "" {
		output = os.Stderr
	}
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: s.at.url, OperationTimeout: s.patience, Logger: log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(output, nil))),
	})
	s.must(err, "client")
	s.Cleanup(client.Close)
	return client
}

// own points the scenario at a broker of its own with these settings, and starts it.
func (s *scenario) own(port, webPort int, arguments ...string) *brokerProcess {
	s.Helper()
	broker, err := newBroker(port, webPort, arguments...)
	s.must(err, "broker")
	s.Cleanup(func() {
		broker.kill()
		if s.Failed() {
			s.Log(broker.log())
		} else {
			broker.remove()
		}
	})
	s.must(broker.start(), "start of the broker")
	s.at = broker.address
	s.client = s.newClient()
	return broker
}

// producer makes a producer on the scenario's topic, not batching, after options were applied.
func (s *scenario) producer(options ...func(*pulsar.ProducerOptions)) pulsar.Producer {
	s.Helper()
	producer, err := s.tryProducer(options...)
	s.must(err, "producer")
	return producer
}

func (s *scenario) tryProducer(options ...func(*pulsar.ProducerOptions)) (pulsar.Producer, error) {
	all := pulsar.ProducerOptions{Topic: s.topic, DisableBatching: true}
	for _, option := range options {
		option(&all)
	}
	producer, err := s.client.CreateProducer(all)
	if err == nil {
		s.Cleanup(producer.Close)
	}
	return producer, err
}

// consumer makes a consumer of subscription "sub" from the earliest message on, whose acks wait for their answer.
func (s *scenario) consumer(options ...func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	s.Helper()
	consumer, err := s.tryConsumer(options...)
	s.must(err, "consumer")
	return consumer
}

func (s *scenario) tryConsumer(options ...func(*pulsar.ConsumerOptions)) (pulsar.Consumer, error) {
	all := pulsar.ConsumerOptions{
		Topic: s.topic, SubscriptionName: "sub", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, AckWithResponse: true,
	}
	for _, option := range options {
		option(&all)
	}
	consumer, err := s.client.Subscribe(all)
	if err == nil {
		s.Cleanup(consumer.Close)
	}
	return consumer, err
}

func kind(kind pulsar.SubscriptionType) func(*pulsar.ConsumerOptions) {
	return func(o *pulsar.ConsumerOptions) { o.Type = kind }
}

func named(name string) func(*pulsar.ConsumerOptions) {
	return func(o *pulsar.ConsumerOptions) { o.Name = name }
}

func queue(size int) func(*pulsar.ConsumerOptions) {
	return func(o *pulsar.ConsumerOptions) { o.ReceiverQueueSize = size }
}

// batching makes whole batches of n messages, sent when full or flushed.
func batching(n uint) func(*pulsar.ProducerOptions) {
	return func(o *pulsar.ProducerOptions) {
		o.DisableBatching, o.BatchingMaxMessages, o.BatchingMaxPublishDelay = false, n, time.Hour
	}
}

// send publishes one message and waits for its receipt.
func (s *scenario) send(producer pulsar.Producer, message *pulsar.ProducerMessage) pulsar.MessageID {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	id, err := producer.Send(ctx, message)
	s.must(err, "send")
	return id
}

// sendAll publishes messages without waiting in between, and returns their ids when all have receipts.
func (s *scenario) sendAll(producer pulsar.Producer, messages ...*pulsar.ProducerMessage) []pulsar.MessageID {
	s.Helper()
	type receipt struct {
		index int
		id    pulsar.MessageID
		err   error
	}
	receipts := make(chan receipt, len(messages))
	for index, message := range messages {
		producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			receipts <- receipt{index, id, err}
		})
	}
	s.must(producer.Flush(), "flush")
	ids := make([]pulsar.MessageID, len(messages))
	deadline := time.After(s.patience)
	for range messages {
		select {
		case one := <-receipts:
			s.must(one.err, "send of message %d", one.index)
			ids[one.index] = one.id
		case <-deadline:
			s.Fatalf("receipts are missing after %v", s.patience)
		}
	}
	return ids
}

// numbered makes messages whose payloads are the numbers from low to below high.
func numbered(low, high int) []*pulsar.ProducerMessage {
	var messages []*pulsar.ProducerMessage
	for n := low; n < high; n++ {
		messages = append(messages, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(n))})
	}
	return messages
}

// numbers is the payloads that numbered makes.
func numbers(low, high int) []string {
	var all []string
	for n := low; n < high; n++ {
		all = append(all, fmt.Sprint(n))
	}
	return all
}

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

type nexter interface {
	Next(context.Context) (pulsar.Message, error)
}

// receive takes the next message of a consumer.
func (s *scenario) receive(from receiver) pulsar.Message {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	message, err := from.Receive(ctx)
	s.must(err, "receive")
	return message
}

// receiveN takes the next n messages of a consumer.
func (s *scenario) receiveN(from receiver, n int) []pulsar.Message {
	s.Helper()
	var messages []pulsar.Message
	for len(messages) < n {
		ctx, cancel := context.WithTimeout(context.Background(), s.patience)
		message, err := from.Receive(ctx)
		cancel()
		s.must(err, "receive of message %d of %d", len(messages), n)
		messages = append(messages, message)
	}
	return messages
}

// next takes the next message of a reader.
func (s *scenario) next(from nexter) pulsar.Message {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	message, err := from.Next(ctx)
	s.must(err, "next")
	return message
}

// silent listens a while for a message that must not come.
func (s *scenario) silent(from receiver, what string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), quiet)
	defer cancel()
	message, err := from.Receive(ctx)
	if err == nil {
		s.Fatalf("%s: got %q, want nothing", what, message.Payload())
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		s.Fatalf("%s: %v", what, err)
	}
}

// texts is the payloads of messages.
func texts(messages []pulsar.Message) []string {
	all := make([]string, len(messages))
	for index, message := range messages {
		all[index] = string(message.Payload())
	}
	return all
}

// rest calls the admin API and returns the status and the body.
func (s *scenario) rest(method, path, body string) (int, string) {
	s.Helper()
	request, err := http.NewRequest(method, s.at.admin+path, strings.NewReader(body))
	s.must(err, "request")
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: s.patience}
	answer, err := client.Do(request)
	s.must(err, "%s %s", method, path)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	s.must(err, "%s %s", method, path)
	return answer.StatusCode, string(text)
}

// admin calls the admin API, which must say yes, and returns the body.
func (s *scenario) admin(method, path, body string) string {
	s.Helper()
	status, text := s.rest(method, path, body)
	if status/100 != 2 {
		s.Fatalf("%s %s answered %d %s", method, path, status, text)
	}
	return text
}

// topicPath is the admin path of a topic.
func topicPath(topic, rest string) string {
	return "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + rest
}

// stats is the statistics of the scenario's topic.
func (s *scenario) stats() map[string]any {
	s.Helper()
	var stats map[string]any
	s.must(json.Unmarshal([]byte(s.admin("GET", topicPath(s.topic, "/stats"), "")), &stats), "stats")
	return stats
}

// namespace makes a namespace with these policies and moves the scenario's topic into it.
func (s *scenario) namespace(policies string) string {
	s.Helper()
	name := s.topic[strings.LastIndex(s.topic, "/")+1:]
	s.admin("PUT", "/admin/v2/namespaces/public/"+name, policies)
	s.topic = "persistent://public/" + name + "/topic"
	return name
}
