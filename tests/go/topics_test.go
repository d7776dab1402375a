package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

// spread receives messages and counts them by partition.
func (s *scenario) spread(consumer pulsar.Consumer, total int) map[int32]int {
	s.Helper()
	count := map[int32]int{}
	for _, message := range s.receiveN(consumer, total) {
		count[message.ID().PartitionIdx()]++
		s.must(consumer.Ack(message), "ack")
	}
	return count
}

func TestPartitionedTopic(t *testing.T) {
	run(t, func(s *scenario) {
		s.admin("PUT", topicPath(s.topic, "/partitions"), "4")
		partitions, err := s.client.TopicPartitions(s.topic)
		s.must(err, "partitions")
		s.equal(len(partitions), 4, "partitions")
		s.equal(partitions[3], s.topic+"-partition-3", "last partition")
		consumer := s.consumer(kind(pulsar.Shared))
		s.sendAll(s.producer(), numbered(0, 40)...)
		s.equal(s.spread(consumer, 40), map[int32]int{0: 10, 1: 10, 2: 10, 3: 10}, "messages without a key, in turn")
		router := func(o *pulsar.ProducerOptions) {
			o.MessageRouter = func(message *pulsar.ProducerMessage, topic pulsar.TopicMetadata) int {
				number, _ := strconv.Atoi(string(message.Payload))
				return number % 2 * int(topic.NumPartitions()-1)
			}
		}
		s.sendAll(s.producer(router), numbered(0, 20)...)
		s.equal(s.spread(consumer, 20), map[int32]int{0: 10, 3: 10}, "messages with a router")
		s.sendAll(s.producer(), keyed(10, 5)...)
		where := map[string]int32{}
		for _, message := range s.receiveN(consumer, 50) {
			if before, known := where[message.Key()]; known && before != message.ID().PartitionIdx() {
				s.Fatalf("key %s went to partitions %d and %d", message.Key(), before, message.ID().PartitionIdx())
			}
			where[message.Key()] = message.ID().PartitionIdx()
		}
		s.equal(len(where), 10, "keys")
	})
}

func TestAutoCreatedPartitions(t *testing.T) {
	run(t, func(s *scenario) {
		if external {
			name := s.namespace("")
			s.admin("POST", "/admin/v2/namespaces/public/"+name+"/autoTopicCreation",
				`{"allowAutoTopicCreation":true,"topicType":"partitioned","defaultNumPartitions":3}`)
		} else {
			s.own(0, 0, "--allow-auto-topic-creation-type", "partitioned", "--default-num-partitions", "3")
		}
		consumer := s.consumer(kind(pulsar.Shared))
		s.sendAll(s.producer(), numbered(0, 30)...)
		s.equal(s.spread(consumer, 30), map[int32]int{0: 10, 1: 10, 2: 10}, "messages by partition")
	})
}

func TestTerminatedTopic(t *testing.T) {
	run(t, func(s *scenario) {
		producer, consumer := s.producer(), s.consumer()
		ids := s.sendAll(producer, numbered(0, 5)...)
		var last struct{ LedgerID, EntryID int64 }
		s.must(json.Unmarshal([]byte(s.admin("POST", topicPath(s.topic, "/terminate"), "")), &last), "answer to terminate")
		s.equal([]int64{last.LedgerID, last.EntryID}, []int64{ids[4].LedgerID(), ids[4].EntryID()}, "last message")
		_, err := s.tryProducer()
		s.refused(err, "a producer of a terminated topic", "TopicTerminated")
		ctx, cancel := context.WithTimeout(context.Background(), s.patience)
		defer cancel()
		_, err = producer.Send(ctx, numbered(5, 6)[0])
		s.refused(err, "a message to a terminated topic")
		// What is in it can still be read, by those who were there and by others.
		messages := s.receiveN(consumer, 5)
		s.equal(texts(messages), numbers(0, 5), "messages")
		// The last one stays: this client drops the connection when it is told that the topic has ended.
		s.must(consumer.AckCumulative(messages[3]), "ack")
		s.equal(s.read(s.reader()), numbers(0, 5), "messages of a reader")
	})
}

func TestStatistics(t *testing.T) {
	run(t, func(s *scenario) {
		consumer := s.consumer(kind(pulsar.Shared), queue(100), named("the-consumer"))
		s.sendAll(s.producer(batching(10)), numbered(0, 60)...)
		for _, message := range s.receiveN(consumer, 60)[:20] {
			s.must(consumer.Ack(message), "ack")
		}
		stats := s.stats()
		s.equal(stats["msgInCounter"], 60, "messages in")
		s.equal(stats["msgOutCounter"], 60, "messages out")
		s.equal(len(stats["publishers"].([]any)), 1, "publishers")
		subscription := stats["subscriptions"].(map[string]any)["sub"].(map[string]any)
		s.equal(subscription["type"], "Shared", "type")
		s.equal(subscription["unackedMessages"], 40, "unacked messages")
		s.equal(subscription["msgBacklog"], 4, "backlog, in entries")
		consumers := subscription["consumers"].([]any)
		s.equal(len(consumers), 1, "consumers")
		s.equal(consumers[0].(map[string]any)["consumerName"], "the-consumer", "name of the consumer")
		if number := stats["bytesInCounter"].(float64); number < 60 {
			s.Fatalf("bytes in: %v", number)
		}
	})
}

type person struct {
	Name string `json:"name" avro:"name"`
	Age  int32  `json:"age" avro:"age"`
}

const (
	personV1 = `{"type":"record","name":"Person","namespace":"example","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
	personV2 = `{"type":"record","name":"Person","namespace":"example","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"},
		{"name":"city","type":["null","string"],"default":null}]}`
	personBad = `{"type":"record","name":"Person","namespace":"example","fields":[{"name":"name","type":"int"},{"name":"shoe","type":"int"}]}`
)

func schema(schema pulsar.Schema) func(*pulsar.ProducerOptions) {
	return func(o *pulsar.ProducerOptions) { o.Schema = schema }
}

func TestSchemas(t *testing.T) {
	for name, make := range map[string]func(string) pulsar.Schema{
		"json": func(text string) pulsar.Schema { return pulsar.NewJSONSchema(text, nil) },
		"avro": func(text string) pulsar.Schema { return pulsar.NewAvroSchema(text, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *scenario) {
				consumer := s.consumer(func(o *pulsar.ConsumerOptions) { o.Schema = make(personV1) })
				for n, text := range []string{personV1, personV2, personV1} {
					if name == "avro" && text == personV2 {
						// This client encodes with the schema it is given: the type has no city.
						s.producer(schema(make(text)))
						continue
					}
					// This client names the version in batches only.
					s.sendAll(s.producer(schema(make(text)), batching(1)), &pulsar.ProducerMessage{Value: &person{fmt.Sprint("n", n), int32(n)}})
					message := s.receive(consumer)
					var got person
					s.must(message.GetSchemaValue(&got), "value")
					s.equal(got, person{fmt.Sprint("n", n), int32(n)}, "value")
					version := message.SchemaVersion()
					want := 0
					if text == personV2 {
						want = 1
					}
					s.equal(len(version), 8, "bytes of the schema version")
					s.equal(version[7], want, "schema version")
				}
				_, err := s.tryProducer(schema(make(personBad)))
				s.refused(err, "an incompatible schema", "IncompatibleSchema")
				_, err = s.tryProducer(schema(pulsar.NewStringSchema(nil)))
				s.refused(err, "a schema of another type", "IncompatibleSchema")
				_, err = s.tryConsumer(func(o *pulsar.ConsumerOptions) { o.SubscriptionName, o.Schema = "other", make(personBad) })
				s.refused(err, "a consumer with an incompatible schema", "IncompatibleSchema")
			})
		})
	}
}

func TestPrimitiveSchemas(t *testing.T) {
	run(t, func(s *scenario) {
		consumer := s.consumer(func(o *pulsar.ConsumerOptions) { o.Schema = pulsar.NewStringSchema(nil) })
		s.send(s.producer(schema(pulsar.NewStringSchema(nil))), &pulsar.ProducerMessage{Value: "größer"})
		var text *string
		s.must(s.receive(consumer).GetSchemaValue(&text), "value")
		s.equal(*text, "größer", "text")
		s.topic += "-number"
		_, err := s.tryProducer(schema(pulsar.NewInt64Schema(nil)))
		s.must(err, "producer of numbers")
		_, err = s.tryProducer(schema(pulsar.NewStringSchema(nil)))
		s.refused(err, "a text on a topic of numbers", "IncompatibleSchema")
	})
}
