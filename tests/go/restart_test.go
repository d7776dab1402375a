package conformance

import (
	"fmt"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestClientsSurviveAKilledBroker(t *testing.T) {
	if external {
		t.Skip("needs a broker that may be killed")
	}
	run(t, func(s *scenario) {
		port, err := freePort()
		s.must(err, "port")
		broker := s.own(port, 0)
		producer, consumer := s.producer(), s.consumer(kind(pulsar.Shared))
		reader := s.reader()
		s.sendAll(producer, numbered(0, 30)...)
		for n, message := range s.receiveN(consumer, 30) {
			if n%2 == 0 {
				s.must(consumer.Ack(message), "ack")
			}
		}
		s.equal(s.read(reader), numbers(0, 30), "messages of the reader")
		broker.kill()
		s.must(broker.start(), "start on the same data")
		// The same producer, consumer and reader go on; what was acknowledged stays so, the rest comes again.
		s.sendAll(producer, numbered(30, 40)...)
		want := map[string]bool{}
		for n := range 40 {
			if n%2 == 1 || n >= 30 {
				want[fmt.Sprint(n)] = true
			}
		}
		for len(want) > 0 {
			message := s.receive(consumer)
			if number := string(message.Payload()); !want[number] {
				s.Fatalf("message %s came, it was acknowledged or came twice", number)
			} else {
				delete(want, number)
			}
			s.must(consumer.Ack(message), "ack")
		}
		for n := 30; n < 40; n++ {
			s.equal(string(s.next(reader).Payload()), n, "message of the reader")
		}
	})
}
