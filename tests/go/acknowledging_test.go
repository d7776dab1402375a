package conformance

import (
	"fmt"
	"sort"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestIndividualAcks(t *testing.T) {
	for name, kinds := range map[string]pulsar.SubscriptionType{"exclusive": pulsar.Exclusive, "shared": pulsar.Shared} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				s.sendAll(s.producer(), numbered(0, 40)...)
				consumer := s.consumer(kind(kinds))
				var want []string
				for n, message := range s.receiveN(consumer, 40) {
					if n%3 == 0 {
						s.must(consumer.Ack(message), "ack")
					} else {
						want = append(want, string(message.Payload()))
					}
				}
				consumer.Close()
				consumer = s.consumer(kind(kinds))
				s.equal(texts(s.receiveN(consumer, len(want))), want, "messages that were not acknowledged")
				s.silent(consumer, "acknowledged messages")
			})
		})
	}
}

func TestCumulativeAcks(t *testing.T) {
	run(t, func(s *scenario) {
		s.sendAll(s.producer(batching(10)), numbered(0, 40)...)
		consumer := s.consumer(func(o *pulsar.ConsumerOptions) { o.EnableBatchIndexAcknowledgment = true })
		messages := s.receiveN(consumer, 40)
		s.must(consumer.AckCumulative(messages[24]), "ack in the middle of a batch")
		consumer.Close()
		consumer = s.consumer(func(o *pulsar.ConsumerOptions) { o.EnableBatchIndexAcknowledgment = true })
		s.equal(texts(s.receiveN(consumer, 15)), numbers(25, 40), "messages behind the acknowledged one")
	})
}

func TestBatchIndexAcks(t *testing.T) {
	for name, kinds := range map[string]pulsar.SubscriptionType{"exclusive": pulsar.Exclusive, "shared": pulsar.Shared} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				options := func(o *pulsar.ConsumerOptions) { o.Type, o.EnableBatchIndexAcknowledgment = kinds, true }
				s.sendAll(s.producer(batching(10)), numbered(0, 30)...)
				consumer := s.consumer(options)
				var want []string
				for n, message := range s.receiveN(consumer, 30) {
					if n%4 == 1 || n/10 == 1 {
						s.must(consumer.Ack(message), "ack")
					} else {
						want = append(want, string(message.Payload()))
					}
				}
				consumer.Close()
				consumer = s.consumer(options)
				again := s.receiveN(consumer, len(want))
				s.equal(texts(again), want, "messages that were not acknowledged")
				for _, message := range again {
					s.must(consumer.Ack(message), "ack")
				}
				s.sendAll(s.producer(), numbered(30, 31)...)
				s.equal(string(s.receive(consumer).Payload()), "30", "next message")
			})
		})
	}
}

func TestAckOfAList(t *testing.T) {
	run(t, func(s *scenario) {
		s.sendAll(s.producer(), numbered(0, 30)...)
		consumer := s.consumer(kind(pulsar.Shared))
		var ids []pulsar.MessageID
		for _, message := range s.receiveN(consumer, 30)[5:] {
			ids = append(ids, message.ID())
		}
		s.must(consumer.AckIDList(ids), "ack")
		consumer.Close()
		consumer = s.consumer(kind(pulsar.Shared))
		s.equal(texts(s.receiveN(consumer, 5)), numbers(0, 5), "messages that were not acknowledged")
		s.silent(consumer, "acknowledged messages")
	})
}

func TestNackRedeliversWithACount(t *testing.T) {
	run(t, func(s *scenario) {
		consumer := s.consumer(kind(pulsar.Shared), func(o *pulsar.ConsumerOptions) { o.NackRedeliveryDelay = 100 * time.Millisecond })
		s.sendAll(s.producer(), numbered(0, 6)...)
		seen := map[string][]uint32{}
		// Even numbers are refused twice, odd ones are taken at once.
		for range 3 + 3*3 {
			message := s.receive(consumer)
			number := string(message.Payload())
			seen[number] = append(seen[number], message.RedeliveryCount())
			if even := (number[0]-'0')%2 == 0; even && message.RedeliveryCount() < 2 {
				consumer.Nack(message)
			} else {
				s.must(consumer.Ack(message), "ack")
			}
		}
		for n := range 6 {
			want := []uint32{0, 1, 2}
			if n%2 == 1 {
				want = []uint32{0}
			}
			s.equal(seen[fmt.Sprint(n)], want, "redelivery counts of message %d", n)
		}
		s.silent(consumer, "after everything was acknowledged")
	})
}

func TestDeadLetterTopic(t *testing.T) {
	run(t, func(s *scenario) {
		dead := s.consumer(func(o *pulsar.ConsumerOptions) { o.Topic = s.topic + "-sub-DLQ"; o.SubscriptionName = "mourner" })
		consumer := s.consumer(kind(pulsar.Shared), func(o *pulsar.ConsumerOptions) {
			o.NackRedeliveryDelay = 100 * time.Millisecond
			o.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: s.topic + "-sub-DLQ"}
			o.AckWithResponse = false
		})
		s.send(s.producer(), &pulsar.ProducerMessage{Payload: []byte("poison"), Key: "k", Properties: map[string]string{"p": "v"}})
		for count := range 3 {
			message := s.receive(consumer)
			s.equal(message.RedeliveryCount(), count, "redelivery count")
			consumer.Nack(message)
		}
		message := s.receive(dead)
		s.equal(string(message.Payload()), "poison", "dead letter")
		s.equal(message.Key(), "k", "key")
		s.equal(message.Properties()["p"], "v", "property")
		s.equal(message.Properties()[pulsar.SysPropertyRealTopic], s.topic, "origin")
	})
}

func TestRetryTopic(t *testing.T) {
	run(t, func(s *scenario) {
		consumer := s.consumer(kind(pulsar.Shared), func(o *pulsar.ConsumerOptions) {
			o.RetryEnable = true
			o.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2}
			// The client acknowledges while it handles the receipt of the new message: an answer would be waited for in vain.
			o.AckWithResponse = false
		})
		dead := s.consumer(func(o *pulsar.ConsumerOptions) { o.Topic = s.topic + "-sub-DLQ"; o.SubscriptionName = "mourner" })
		s.send(s.producer(), &pulsar.ProducerMessage{Payload: []byte("again")})
		var times []string
		for range 3 {
			message := s.receive(consumer)
			s.equal(string(message.Payload()), "again", "message")
			times = append(times, message.Properties()[pulsar.SysPropertyReconsumeTimes])
			consumer.ReconsumeLater(message, 200*time.Millisecond)
		}
		s.equal(times, []string{"", "1", "2"}, "times it was put off")
		s.equal(string(s.receive(dead).Payload()), "again", "dead letter")
	})
}

func TestUnackedMessagesGoToTheOthers(t *testing.T) {
	run(t, func(s *scenario) {
		one := s.consumer(kind(pulsar.Shared), queue(100))
		s.sendAll(s.producer(), numbered(0, 30)...)
		s.receiveN(one, 30)
		two := s.consumer(kind(pulsar.Shared))
		s.silent(two, "while the first consumer holds everything")
		one.Close()
		messages := s.receiveN(two, 30)
		got := texts(messages)
		sort.Slice(got, func(i, j int) bool { return len(got[i]) < len(got[j]) || len(got[i]) == len(got[j]) && got[i] < got[j] })
		s.equal(got, numbers(0, 30), "messages of the second consumer")
		// Leaving is no refusal: the count does not rise.
		s.equal(messages[0].RedeliveryCount(), 0, "redelivery count")
	})
}
