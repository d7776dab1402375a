package conformance

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestExclusiveAdmitsOneConsumer(t *testing.T) {
	run(t, func(s *scenario) {
		first := s.consumer()
		_, err := s.tryConsumer()
		s.refused(err, "a second exclusive consumer", "ConsumerBusy")
		_, err = s.tryConsumer(kind(pulsar.Shared))
		s.refused(err, "another type beside it", "ConsumerBusy")
		first.Close()
		second := s.consumer(kind(pulsar.Shared))
		s.sendAll(s.producer(), numbered(0, 3)...)
		s.equal(texts(s.receiveN(second, 3)), numbers(0, 3), "messages")
	})
}

func TestSharedGivesEachMessageToOneConsumer(t *testing.T) {
	run(t, func(s *scenario) {
		const total = 200
		one, two := s.consumer(kind(pulsar.Shared), queue(20)), s.consumer(kind(pulsar.Shared), queue(20))
		s.sendAll(s.producer(), numbered(0, total)...)
		// Neither queue holds all, so both have to be served before either is emptied.
		seen := map[string]int{}
		for _, message := range []pulsar.Message{s.receive(one), s.receive(two)} {
			seen[string(message.Payload())]++
		}
		for len(seen) < total {
			select {
			case message := <-one.Chan():
				seen[string(message.Payload())]++
				s.must(one.Ack(message), "ack")
			case message := <-two.Chan():
				seen[string(message.Payload())]++
				s.must(two.Ack(message), "ack")
			case <-time.After(s.patience):
				s.Fatalf("%d messages of %d came", len(seen), total)
			}
		}
		s.silent(one, "after the last message")
		s.silent(two, "after the last message")
		for number, times := range seen {
			s.equal(times, 1, "deliveries of message %s", number)
		}
	})
}

// activity follows who is active in a Failover subscription.
type activity struct {
	lock  sync.Mutex
	state map[string]string
}

type listener struct {
	name string
	*activity
}

func (l listener) set(state string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.state[l.name] = state
}

func (l listener) BecameActive(pulsar.Consumer, string, int32)   { l.set("active") }
func (l listener) BecameInactive(pulsar.Consumer, string, int32) { l.set("inactive") }

// is says what a consumer was last told.
func (a *activity) is(name string) string {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.state[name]
}

func TestFailoverHandsOver(t *testing.T) {
	run(t, func(s *scenario) {
		who := &activity{state: map[string]string{}}
		join := func(name string) pulsar.Consumer {
			return s.consumer(kind(pulsar.Failover), named(name), func(o *pulsar.ConsumerOptions) { o.EventListener = listener{name, who} })
		}
		first := join("first")
		s.until("the only consumer is active", func() bool { return who.is("first") == "active" })
		producer := s.producer()
		s.sendAll(producer, numbered(0, 20)...)
		messages := s.receiveN(first, 20)
		s.equal(texts(messages), numbers(0, 20), "messages of the only consumer")
		s.must(first.AckCumulative(messages[9]), "ack")
		// Whether the second takes over at once or when the first one leaves is a matter of its name and the topic's.
		second := join("second")
		first.Close()
		s.equal(texts(s.receiveN(second, 10)), numbers(10, 20), "messages of the successor")
		s.equal(who.is("second"), "active", "the successor")
		s.sendAll(producer, numbered(20, 30)...)
		s.equal(texts(s.receiveN(second, 10)), numbers(20, 30), "new messages of the successor")
	})
}

// keyed makes rounds messages for each of keys, round by round; payloads are "key/round".
func keyed(keys, rounds int) []*pulsar.ProducerMessage {
	var messages []*pulsar.ProducerMessage
	for round := range rounds {
		for key := range keys {
			name := fmt.Sprintf("key-%d", key)
			messages = append(messages, &pulsar.ProducerMessage{Key: name, Payload: []byte(fmt.Sprintf("%s/%d", name, round))})
		}
	}
	return messages
}

// collect receives total messages from consumers, acknowledges them, and returns for each key its consumer and its
// payloads in the order of arrival. A key with two consumers fails the scenario.
func (s *scenario) collect(consumers []pulsar.Consumer, total int) (map[string]int, map[string][]string) {
	s.Helper()
	owner, payloads := map[string]int{}, map[string][]string{}
	all := make(chan struct {
		consumer int
		message  pulsar.ConsumerMessage
	})
	stop := make(chan struct{})
	defer close(stop)
	for index, consumer := range consumers {
		go func() {
			for {
				select {
				case message := <-consumer.Chan():
					select {
					case all <- struct {
						consumer int
						message  pulsar.ConsumerMessage
					}{index, message}:
					case <-stop:
						return
					}
				case <-stop:
					return
				}
			}
		}()
	}
	for n := range total {
		select {
		case one := <-all:
			key := one.message.Key()
			if before, known := owner[key]; known && before != one.consumer {
				s.Fatalf("key %s went to consumer %d and to consumer %d", key, before, one.consumer)
			}
			owner[key] = one.consumer
			payloads[key] = append(payloads[key], string(one.message.Payload()))
			s.must(one.message.Ack(one.message.Message), "ack")
		case <-time.After(s.patience):
			s.Fatalf("%d messages of %d came", n, total)
		}
	}
	return owner, payloads
}

func (s *scenario) inKeyOrder(payloads map[string][]string, keys, rounds int) {
	s.Helper()
	s.equal(len(payloads), keys, "keys")
	for key, got := range payloads {
		var want []string
		for round := range rounds {
			want = append(want, fmt.Sprintf("%s/%d", key, round))
		}
		s.equal(got, want, "messages of %s", key)
	}
}

func TestKeySharedKeepsAKeyOnOneConsumer(t *testing.T) {
	run(t, func(s *scenario) {
		const keys, rounds = 60, 10
		var consumers []pulsar.Consumer
		for n := range 3 {
			consumers = append(consumers, s.consumer(kind(pulsar.KeyShared), named(fmt.Sprintf("consumer-%d", n))))
		}
		s.sendAll(s.producer(), keyed(keys, rounds)...)
		owner, payloads := s.collect(consumers, keys*rounds)
		s.inKeyOrder(payloads, keys, rounds)
		share := map[int]int{}
		for _, consumer := range owner {
			share[consumer]++
		}
		s.equal(len(share), 3, "consumers that own keys")
	})
}

func TestKeySharedHoldsAMovedKeyUntilItsMessagesAreAcked(t *testing.T) {
	run(t, func(s *scenario) {
		const keys = 30
		first := s.consumer(kind(pulsar.KeyShared), named("first"))
		producer := s.producer()
		s.sendAll(producer, keyed(keys, 1)...)
		held := s.receiveN(first, keys)
		second := s.consumer(kind(pulsar.KeyShared), named("second"))
		s.sendAll(producer, keyed(keys, 1)...)
		s.silent(second, "while the old owner holds a message of every key")
		for _, message := range held {
			s.must(first.Ack(message), "ack")
		}
		owner, payloads := s.collect([]pulsar.Consumer{first, second}, keys)
		s.inKeyOrder(payloads, keys, 1)
		moved := 0
		for _, consumer := range owner {
			moved += consumer
		}
		if moved == 0 || moved == keys {
			s.Fatalf("%d of %d keys moved to the second consumer", moved, keys)
		}
	})
}

func TestKeySharedStickyRanges(t *testing.T) {
	run(t, func(s *scenario) {
		sticky := func(low, high int) func(*pulsar.ConsumerOptions) {
			policy, err := pulsar.NewKeySharedPolicySticky([]int{low, high})
			s.must(err, "policy")
			return func(o *pulsar.ConsumerOptions) { o.Type, o.KeySharedPolicy = pulsar.KeyShared, policy }
		}
		low, high := s.consumer(sticky(0, 32767)), s.consumer(sticky(32768, 65535))
		_, err := s.tryConsumer(sticky(30000, 40000))
		s.refused(err, "an overlapping range", "ConsumerAssignError")
		// Murmur3 slots: "key1" 293, "hello" 64071.
		producer := s.producer()
		for n := range 10 {
			s.send(producer, &pulsar.ProducerMessage{Key: "key1", Payload: []byte(fmt.Sprint("low", n))})
			s.send(producer, &pulsar.ProducerMessage{Key: "other", OrderingKey: "hello", Payload: []byte(fmt.Sprint("high", n))})
		}
		for n := range 10 {
			s.equal(string(s.receive(low).Payload()), fmt.Sprint("low", n), "message of the low range")
			s.equal(string(s.receive(high).Payload()), fmt.Sprint("high", n), "message of the high range")
		}
	})
}

func TestReceiverQueues(t *testing.T) {
	for _, size := range []int{1, 2, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			run(t, func(s *scenario) {
				consumer := s.consumer(queue(size))
				s.sendAll(s.producer(), numbered(0, 300)...)
				s.equal(texts(s.receiveN(consumer, 300)), numbers(0, 300), "messages")
			})
		})
	}
	t.Run("0", func(t *testing.T) {
		run(t, func(s *scenario) {
			none := s.consumer(kind(pulsar.Shared), func(o *pulsar.ConsumerOptions) { o.EnableZeroQueueConsumer = true })
			s.sendAll(s.producer(), numbered(0, 10)...)
			taken := s.receive(none)
			// What the consumer did not ask for is still there for another one.
			others := texts(s.receiveN(s.consumer(kind(pulsar.Shared)), 9))
			others = append(others, string(taken.Payload()))
			sort.Strings(others)
			s.equal(others, numbers(0, 10), "messages")
			s.sendAll(s.producer(), numbered(10, 11)...)
		})
	})
}

func TestSeveralTopicsInOneConsumer(t *testing.T) {
	run(t, func(s *scenario) {
		topics := []string{s.topic + "-a", s.topic + "-b", s.topic + "-c"}
		consumer := s.consumer(func(o *pulsar.ConsumerOptions) { o.Topic, o.Topics = "", topics })
		for _, topic := range topics {
			s.sendAll(s.producer(func(o *pulsar.ProducerOptions) { o.Topic = topic }), numbered(0, 10)...)
		}
		got := map[string][]string{}
		for _, message := range s.receiveN(consumer, 30) {
			got[message.Topic()] = append(got[message.Topic()], string(message.Payload()))
			s.must(consumer.Ack(message), "ack")
		}
		for _, topic := range topics {
			s.equal(got[topic], numbers(0, 10), "messages of %s", topic)
		}
	})
}

func TestPatternConsumerFindsNewTopics(t *testing.T) {
	run(t, func(s *scenario) {
		send := func(suffix string) {
			topic := s.topic + suffix
			s.send(s.producer(func(o *pulsar.ProducerOptions) { o.Topic = topic }), &pulsar.ProducerMessage{Payload: []byte(suffix)})
		}
		send("-early")
		consumer := s.consumer(func(o *pulsar.ConsumerOptions) {
			o.Topic, o.TopicsPattern, o.AutoDiscoveryPeriod = "", s.topic+"-.*", 200*time.Millisecond
		})
		s.equal(string(s.receive(consumer).Payload()), "-early", "message of a topic that was there")
		send("-late")
		s.equal(string(s.receive(consumer).Payload()), "-late", "message of a new topic")
	})
}

func TestUnsubscribe(t *testing.T) {
	run(t, func(s *scenario) {
		one, two := s.consumer(kind(pulsar.Shared)), s.consumer(kind(pulsar.Shared))
		producer := s.producer()
		s.sendAll(producer, numbered(0, 5)...)
		if err := one.Unsubscribe(); err == nil {
			s.Fatalf("unsubscribing beside another consumer must be refused")
		}
		two.Close()
		s.must(one.Unsubscribe(), "unsubscribe of the only consumer")
		// The subscription is a new one: it starts where it says, not where the old one stood.
		again := s.consumer(func(o *pulsar.ConsumerOptions) { o.SubscriptionInitialPosition = pulsar.SubscriptionPositionLatest })
		s.sendAll(producer, numbered(5, 6)...)
		s.equal(string(s.receive(again).Payload()), "5", "first message of the new subscription")
	})
}

func TestReopenedSubscriptionGoesOn(t *testing.T) {
	run(t, func(s *scenario) {
		s.sendAll(s.producer(), numbered(0, 50)...)
		consumer := s.consumer()
		messages := s.receiveN(consumer, 30)
		s.must(consumer.AckCumulative(messages[19]), "ack")
		consumer.Close()
		s.client.Close()
		s.client = s.newClient()
		consumer = s.consumer()
		s.equal(texts(s.receiveN(consumer, 30)), numbers(20, 50), "messages after reopening")
	})
}

func TestConsumerSeeks(t *testing.T) {
	run(t, func(s *scenario) {
		producer := s.producer()
		consumer := s.consumer(func(o *pulsar.ConsumerOptions) { o.StartMessageIDInclusive = true })
		ids := s.sendAll(producer, numbered(0, 20)...)
		messages := s.receiveN(consumer, 20)
		s.must(consumer.AckCumulative(messages[19]), "ack")
		s.must(consumer.Seek(ids[12]), "seek to an id")
		first := s.receive(consumer)
		s.equal(string(first.Payload()), "12", "first message after a seek to an id")
		s.must(consumer.Seek(ids[0]), "seek to the beginning")
		s.equal(texts(s.receiveN(consumer, 20)), numbers(0, 20), "messages after a seek to the beginning")
		s.must(consumer.SeekByTime(messages[7].PublishTime()), "seek by time")
		at := s.receive(consumer)
		if at.PublishTime().Before(messages[7].PublishTime()) || string(at.Payload()) > "7" && len(at.Payload()) == 1 {
			s.Fatalf("first message after a seek to the time of message 7: %q of %v", at.Payload(), at.PublishTime())
		}
		s.must(consumer.SeekByTime(time.Now().Add(time.Hour)), "seek to the end")
		s.sendAll(producer, numbered(20, 21)...)
		s.until("the first message after a seek to the end", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			message, err := consumer.Receive(ctx)
			return err == nil && string(message.Payload()) == "20"
		})
	})
}

func TestLastMessageID(t *testing.T) {
	run(t, func(s *scenario) {
		consumer := s.consumer()
		ids := s.sendAll(s.producer(batching(5)), numbered(0, 10)...)
		last, err := consumer.GetLastMessageIDs()
		s.must(err, "last message id")
		s.equal(len(last), 1, "topics")
		s.equal([]int64{last[0].LedgerID(), last[0].EntryID(), int64(last[0].BatchIdx())},
			[]int64{ids[9].LedgerID(), ids[9].EntryID(), 4}, "last message id")
	})
}
