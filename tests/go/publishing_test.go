package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestMessageCarriesEverything(t *testing.T) {
	for _, batched := range []bool{false, true} {
		t.Run(fmt.Sprintf("batched=%v", batched), func(t *testing.T) {
			run(t, func(s *scenario) {
				producer := s.producer(batching(3), func(o *pulsar.ProducerOptions) { o.Name, o.DisableBatching = "the-producer", !batched })
				event, before := time.UnixMilli(1234567890123), time.Now().Add(-time.Second)
				sequence := int64(41)
				id := s.sendAll(producer, &pulsar.ProducerMessage{
					Payload: []byte("payload"), Key: "the key", OrderingKey: "the order", EventTime: event, SequenceID: &sequence,
					Properties: map[string]string{"colour": "blau", "größe": "5 €", "empty": ""},
				})[0]
				message := s.receive(s.consumer())
				s.equal(string(message.Payload()), "payload", "payload")
				s.equal(message.Key(), "the key", "key")
				s.equal(message.OrderingKey(), "the order", "ordering key")
				s.equal(message.EventTime().UnixMilli(), event.UnixMilli(), "event time")
				s.equal(message.Properties(), map[string]string{"colour": "blau", "größe": "5 €", "empty": ""}, "properties")
				s.equal(message.ProducerName(), "the-producer", "producer")
				s.equal(message.Topic(), s.topic, "topic")
				s.equal(message.RedeliveryCount(), 0, "redelivery count")
				s.equal([]int64{message.ID().LedgerID(), message.ID().EntryID()}, []int64{id.LedgerID(), id.EntryID()}, "message id")
				s.equal(producer.LastSequenceID(), 41, "last sequence id")
				if message.PublishTime().Before(before) || message.PublishTime().After(time.Now().Add(time.Second)) {
					s.Fatalf("publish time %v", message.PublishTime())
				}
			})
		})
	}
}

func TestBatchesKeepOrderAndShareAnEntry(t *testing.T) {
	run(t, func(s *scenario) {
		ids := s.sendAll(s.producer(batching(10)), numbered(0, 100)...)
		for n, message := range s.receiveN(s.consumer(), 100) {
			s.equal(string(message.Payload()), n, "payload")
			s.equal(message.ID().BatchIdx(), n%10, "batch index of message %d", n)
			s.equal(message.ID().EntryID(), ids[n/10*10].EntryID(), "entry of message %d", n)
		}
	})
}

func TestKeyBasedBatches(t *testing.T) {
	run(t, func(s *scenario) {
		const keys, rounds = 20, 10
		consumers := []pulsar.Consumer{
			s.consumer(kind(pulsar.KeyShared), named("one")), s.consumer(kind(pulsar.KeyShared), named("two")),
		}
		s.sendAll(s.producer(batching(keys*rounds), func(o *pulsar.ProducerOptions) { o.BatcherBuilderType = pulsar.KeyBasedBatchBuilder }),
			keyed(keys, rounds)...)
		_, payloads := s.collect(consumers, keys*rounds)
		s.inKeyOrder(payloads, keys, rounds)
	})
}

func TestCompressions(t *testing.T) {
	for name, compression := range map[string]pulsar.CompressionType{
		"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				consumer := s.consumer()
				for _, size := range []uint{1, 25} {
					producer := s.producer(batching(size), func(o *pulsar.ProducerOptions) { o.CompressionType, o.DisableBatching = compression, size == 1 })
					var sent []*pulsar.ProducerMessage
					for n := range 50 {
						sent = append(sent, &pulsar.ProducerMessage{Payload: bytes.Repeat([]byte{byte('a' + n%26)}, 1+n*40)})
					}
					s.sendAll(producer, sent...)
					for n, message := range s.receiveN(consumer, 50) {
						if !bytes.Equal(message.Payload(), sent[n].Payload) {
							s.Fatalf("message %d in batches of %d: %d bytes came, %d were sent", n, size, len(message.Payload()), len(sent[n].Payload))
						}
					}
				}
			})
		})
	}
}

// noise makes bytes that no compression makes smaller.
func noise(size int) []byte {
	content := make([]byte, size)
	source := rand.New(rand.NewSource(int64(size)))
	_, _ = source.Read(content)
	return content
}

func TestLargestMessage(t *testing.T) {
	run(t, func(s *scenario) {
		// The client counts the message's metadata, less than 100 bytes here.
		const limit, largest = 5 << 20, 5<<20 - 100
		producer, consumer := s.producer(), s.consumer()
		ctx, cancel := context.WithTimeout(context.Background(), s.patience)
		defer cancel()
		_, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: noise(limit + 1)})
		s.refused(err, "a message beyond the largest size", "MaxMessageSize")
		for _, size := range []int{largest, 1, largest - 1} {
			s.send(producer, &pulsar.ProducerMessage{Payload: noise(size)})
			message := s.receive(consumer)
			if sha256.Sum256(message.Payload()) != sha256.Sum256(noise(size)) {
				s.Fatalf("a message of %d bytes came as %d other bytes", size, len(message.Payload()))
			}
		}
	})
}

func TestChunkedMessages(t *testing.T) {
	for name, kinds := range map[string]pulsar.SubscriptionType{"exclusive": pulsar.Exclusive, "shared": pulsar.Shared} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				consumer := s.consumer(kind(kinds))
				chunking := func(o *pulsar.ProducerOptions) { o.EnableChunking, o.ChunkMaxMessageSize = true, 100_000 }
				// Two producers at once: their chunks are interleaved.
				sizes := []int{1_500_000, 99_000, 350_001}
				sent := make(chan error)
				for range 2 {
					producer := s.producer(chunking)
					go func() {
						for _, size := range sizes {
							if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: noise(size), Properties: map[string]string{"size": fmt.Sprint(size)}}); err != nil {
								sent <- err
								return
							}
						}
						sent <- nil
					}()
				}
				s.must(<-sent, "send")
				s.must(<-sent, "send")
				count := map[int]int{}
				for _, message := range s.receiveN(consumer, 2*len(sizes)) {
					size := len(message.Payload())
					count[size]++
					if !bytes.Equal(message.Payload(), noise(size)) {
						s.Fatalf("a message of %d bytes came damaged", size)
					}
					s.equal(message.Properties()["size"], size, "size")
					s.must(consumer.Ack(message), "ack")
				}
				s.equal(count, map[int]int{1_500_000: 2, 99_000: 2, 350_001: 2}, "messages by size")
				// Acknowledging a message acknowledged all its chunks.
				consumer.Close()
				s.silent(s.consumer(kind(kinds)), "after everything was acknowledged")
			})
		})
	}
}

func TestManyMessagesInOrder(t *testing.T) {
	run(t, func(s *scenario) {
		const total = 20_000
		consumer, producer := s.consumer(), s.producer(batching(500))
		go func() {
			for _, message := range numbered(0, total) {
				producer.SendAsync(context.Background(), message, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
			}
			_ = producer.Flush()
		}()
		for n := range total {
			message := s.receive(consumer)
			s.equal(string(message.Payload()), n, "message")
			if n%1000 == 999 {
				s.must(consumer.AckCumulative(message), "ack")
			}
		}
	})
}

func TestProducerNames(t *testing.T) {
	run(t, func(s *scenario) {
		name := func(o *pulsar.ProducerOptions) { o.Name = "taken" }
		first := s.producer(name)
		_, err := s.tryProducer(name)
		s.refused(err, "a second producer of one name", "ProducerBusy")
		first.Close()
		s.send(s.producer(name), &pulsar.ProducerMessage{Payload: []byte("x")})
		one, two := s.producer(), s.producer()
		if one.Name() == "" || one.Name() == two.Name() {
			s.Fatalf("generated names: %q, %q", one.Name(), two.Name())
		}
	})
}

func access(mode pulsar.ProducerAccessMode) func(*pulsar.ProducerOptions) {
	return func(o *pulsar.ProducerOptions) { o.ProducerAccessMode = mode }
}

func TestExclusiveProducer(t *testing.T) {
	run(t, func(s *scenario) {
		only := s.producer(access(pulsar.ProducerAccessModeExclusive))
		_, err := s.tryProducer(access(pulsar.ProducerAccessModeExclusive))
		s.refused(err, "a second exclusive producer", "ProducerFenced")
		_, err = s.tryProducer()
		s.refused(err, "a producer beside an exclusive one", "ProducerBusy")
		s.send(only, &pulsar.ProducerMessage{Payload: []byte("x")})
		only.Close()
		s.producer()
		_, err = s.tryProducer(access(pulsar.ProducerAccessModeExclusive))
		s.refused(err, "an exclusive producer beside another", "ProducerFenced")
	})
}

func TestProducersWaitForExclusive(t *testing.T) {
	run(t, func(s *scenario) {
		holder := s.producer(access(pulsar.ProducerAccessModeWaitForExclusive))
		type result struct {
			producer pulsar.Producer
			err      error
		}
		promoted := make(chan result)
		go func() {
			producer, err := s.client.CreateProducer(pulsar.ProducerOptions{
				Topic: s.topic, DisableBatching: true, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
			})
			promoted <- result{producer, err}
		}()
		s.send(holder, &pulsar.ProducerMessage{Payload: []byte("holder")})
		select {
		case <-promoted:
			s.Fatalf("two producers are exclusive at once")
		case <-time.After(quiet):
		}
		holder.Close()
		select {
		case next := <-promoted:
			s.must(next.err, "waiting producer")
			s.Cleanup(next.producer.Close)
			s.send(next.producer, &pulsar.ProducerMessage{Payload: []byte("waiter")})
		case <-time.After(s.patience):
			s.Fatalf("the waiting producer was not promoted")
		}
		s.equal(texts(s.receiveN(s.consumer(), 2)), []string{"holder", "waiter"}, "messages")
	})
}

func TestDeduplication(t *testing.T) {
	run(t, func(s *scenario) {
		if external {
			s.namespace(`{"deduplicationEnabled":true}`)
		} else {
			s.own(0, 0, "--broker-deduplication-enabled", "true")
		}
		send := func(producer pulsar.Producer, low, high int64) {
			for sequence := low; sequence < high; sequence++ {
				s.send(producer, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(sequence)), SequenceID: &sequence})
			}
		}
		named := func(o *pulsar.ProducerOptions) { o.Name = "once" }
		producer := s.producer(named)
		send(producer, 0, 10)
		send(producer, 5, 12)
		producer.Close()
		send(s.producer(named), 0, 15)
		s.equal(texts(s.receiveN(s.consumer(), 15)), numbers(0, 15), "messages")
		send(s.producer(func(o *pulsar.ProducerOptions) { o.Name = "another" }), 3, 4)
		s.equal(texts(s.receiveN(s.consumer(func(o *pulsar.ConsumerOptions) { o.SubscriptionName = "all" }), 16)),
			append(numbers(0, 15), "3"), "messages of both producers")
	})
}

func TestDelayedDelivery(t *testing.T) {
	for name, kinds := range map[string]pulsar.SubscriptionType{"shared": pulsar.Shared, "key_shared": pulsar.KeyShared} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				consumer, producer := s.consumer(kind(kinds)), s.producer()
				due := time.Now().Add(4 * time.Second)
				s.send(producer, &pulsar.ProducerMessage{Payload: []byte("at"), DeliverAt: due})
				s.send(producer, &pulsar.ProducerMessage{Payload: []byte("after"), DeliverAfter: 4 * time.Second})
				s.send(producer, &pulsar.ProducerMessage{Payload: []byte("now")})
				seen := map[string]bool{}
				for range 3 {
					message := s.receive(consumer)
					seen[string(message.Payload())] = true
					// May come up to one tick (1 s) early.
					if early := time.Until(due); string(message.Payload()) != "now" && early > time.Second {
						s.Fatalf("message %q came %v too early", message.Payload(), early)
					}
					s.must(consumer.Ack(message), "ack")
				}
				s.equal(len(seen), 3, "different messages")
			})
		})
	}
	t.Run("exclusive", func(t *testing.T) {
		run(t, func(s *scenario) {
			// Only shared subscriptions delay.
			consumer := s.consumer()
			s.send(s.producer(), &pulsar.ProducerMessage{Payload: []byte("delayed"), DeliverAfter: time.Hour})
			s.equal(string(s.receive(consumer).Payload()), "delayed", "message")
		})
	})
}
