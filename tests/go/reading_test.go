package conformance

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func (s *scenario) reader(options ...func(*pulsar.ReaderOptions)) pulsar.Reader {
	s.Helper()
	all := pulsar.ReaderOptions{Topic: s.topic, StartMessageID: pulsar.EarliestMessageID()}
	for _, option := range options {
		option(&all)
	}
	reader, err := s.client.CreateReader(all)
	s.must(err, "reader")
	s.Cleanup(reader.Close)
	return reader
}

// read takes what a reader has until it says that there is nothing more.
func (s *scenario) read(reader pulsar.Reader) []string {
	s.Helper()
	var got []string
	for reader.HasNext() {
		got = append(got, string(s.next(reader).Payload()))
	}
	return got
}

func TestReaderStartsWhereItSays(t *testing.T) {
	run(t, func(s *scenario) {
		producer := s.producer()
		ids := s.sendAll(producer, numbered(0, 20)...)
		at := func(id pulsar.MessageID, inclusive bool) func(*pulsar.ReaderOptions) {
			return func(o *pulsar.ReaderOptions) { o.StartMessageID, o.StartMessageIDInclusive = id, inclusive }
		}
		s.equal(s.read(s.reader()), numbers(0, 20), "from the beginning")
		s.equal(s.read(s.reader(at(ids[7], false))), numbers(8, 20), "behind message 7")
		s.equal(s.read(s.reader(at(ids[7], true))), numbers(7, 20), "from message 7 on")
		s.equal(s.read(s.reader(at(pulsar.LatestMessageID(), true))), []string{"19"}, "from the last message on")
		end := s.reader(at(pulsar.LatestMessageID(), false))
		s.equal(end.HasNext(), false, "a next message at the end")
		s.sendAll(producer, numbered(20, 21)...)
		s.equal(string(s.next(end).Payload()), "20", "message after the end")
		stored, err := pulsar.DeserializeMessageID(ids[11].Serialize())
		s.must(err, "deserialize")
		s.equal(s.read(s.reader(at(stored, true))), numbers(11, 21), "from a stored id on")
	})
}

func TestReaderStartsInsideABatch(t *testing.T) {
	run(t, func(s *scenario) {
		s.sendAll(s.producer(batching(10)), numbered(0, 30)...)
		var ids []pulsar.MessageID
		for reader := s.reader(); len(ids) < 30; {
			ids = append(ids, s.next(reader).ID())
		}
		for _, inclusive := range []bool{true, false} {
			for _, n := range []int{0, 4, 9, 10, 19, 28} {
				first := n
				if !inclusive {
					first++
				}
				reader := s.reader(func(o *pulsar.ReaderOptions) { o.StartMessageID, o.StartMessageIDInclusive = ids[n], inclusive })
				s.equal(s.read(reader), numbers(first, 30), "from message %d, inclusive: %v", n, inclusive)
			}
		}
	})
}

func TestReaderSeeks(t *testing.T) {
	run(t, func(s *scenario) {
		producer := s.producer()
		ids := s.sendAll(producer, numbered(0, 5)...)
		// A time that lies between two messages for certain.
		clock := time.Now()
		s.until("the clock moves on", func() bool { return time.Since(clock) > 5*time.Millisecond })
		between := time.Now()
		s.until("the clock moves on", func() bool { return time.Since(between) > 5*time.Millisecond })
		s.sendAll(producer, numbered(5, 10)...)
		reader := s.reader(func(o *pulsar.ReaderOptions) { o.StartMessageIDInclusive = true })
		s.equal(s.read(reader), numbers(0, 10), "all messages")
		s.must(reader.SeekByTime(between), "seek by time")
		s.equal(s.read(reader), numbers(5, 10), "after a seek by time")
		s.must(reader.Seek(ids[3]), "seek by id")
		s.equal(s.read(reader), numbers(3, 10), "after a seek by id")
		s.must(reader.Seek(ids[0]), "seek to the beginning")
		s.equal(s.read(reader), numbers(0, 10), "after a seek to the beginning")
	})
}

func TestReaderOfTheCompactedView(t *testing.T) {
	run(t, func(s *scenario) {
		s.sendAll(s.producer(), keyed(3, 2)...)
		// Nothing was compacted: the view is the topic.
		reader := s.reader(func(o *pulsar.ReaderOptions) { o.ReadCompacted = true })
		s.equal(len(s.read(reader)), 6, "messages")
		_, err := s.tryConsumer(kind(pulsar.Shared), func(o *pulsar.ConsumerOptions) { o.ReadCompacted = true })
		s.refused(err, "a shared consumer of the compacted view")
	})
}

func TestTableView(t *testing.T) {
	run(t, func(s *scenario) {
		text := pulsar.NewStringSchema(nil)
		producer := s.producer(func(o *pulsar.ProducerOptions) { o.Schema = text })
		put := func(key, value string) { s.send(producer, &pulsar.ProducerMessage{Key: key, Value: value}) }
		put("a", "1")
		put("b", "2")
		put("a", "3")
		view, err := s.client.CreateTableView(pulsar.TableViewOptions{
			Topic: s.topic, Schema: text, SchemaValueType: reflect.TypeOf(new(string)),
		})
		s.must(err, "table view")
		s.Cleanup(view.Close)
		value := func(key string) string {
			if got, ok := view.Get(key).(*string); ok {
				return *got
			}
			return ""
		}
		s.until("the view shows the topic", func() bool { return value("a") == "3" && value("b") == "2" && view.Size() == 2 })
		put("b", "4")
		s.until("the view follows the topic", func() bool { return value("b") == "4" })
	})
}

func TestNonPersistentTopic(t *testing.T) {
	run(t, func(s *scenario) {
		s.topic = "non-" + s.topic
		producer, consumer := s.producer(), s.consumer()
		// Until the consumer's permits have arrived messages are dropped.
		s.until("a first message gets through", func() bool {
			s.send(producer, &pulsar.ProducerMessage{Payload: []byte("probe")})
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, err := consumer.Receive(ctx)
			return err == nil
		})
		s.sendAll(producer, numbered(0, 50)...)
		var got []string
		for len(got) < 50 {
			if message := s.receive(consumer); string(message.Payload()) != "probe" {
				got = append(got, string(message.Payload()))
				s.must(consumer.Ack(message), "ack")
			}
		}
		s.equal(got, numbers(0, 50), "messages")
		consumer.Close()
		s.sendAll(producer, numbered(50, 51)...)
		s.silent(s.consumer(), "a message that nobody listened to")
	})
}
