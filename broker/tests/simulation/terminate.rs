//! Topics that end: who is told what, and that it stays so.

use vela_broker::engine::TerminateError;
use vela_broker::store::log::Position;
use vela_broker::store::memory::Kept;
use vela_proto::{ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

fn position(receipt: (u64, u64, u64)) -> Position {
    Position::new(receipt.1 as i64, receipt.2 as i64)
}

/// The topic on either core, the caller on either core.
#[test]
fn producers_are_closed_and_refused_and_consumers_hear_of_the_end() {
    for (home, core) in [(0, 0), (1, 0)] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(home, "t");
        let mut client = Client::connect(&mut world, core);
        let name = client.producer(&mut world, &topic, 1);
        client.subscribe(&mut world, &topic, "behind", false, 7);
        client.subscribe(&mut world, &topic, "done", true, 8);
        for consumer in [7, 8] {
            client.flow(&mut world, consumer, 10);
        }
        client.send(&mut world, 1, 0, "a");
        client.send(&mut world, 1, 1, "b");
        client.receipt(&mut world);
        let last = client.receipt(&mut world);
        let got = client.messages(&mut world);
        let ids = |consumer| -> Vec<_> {
            let of = got.iter().filter(|m| m.consumer == consumer);
            of.map(|m| m.id()).collect()
        };
        client.ack(&mut world, 8, ids(8), false);
        client.expect_silence(&mut world);
        assert_eq!(world.terminate(0, &topic), Some(Ok(position(last))));
        let closed = client.expect(&mut world, Type::CloseProducer);
        assert_eq!(closed.command.close_producer.unwrap().producer_id, 1);
        let end = client.expect(&mut world, Type::ReachedEndOfTopic);
        assert_eq!(end.command.reached_end_of_topic.unwrap().consumer_id, 8);
        client.expect_silence(&mut world);
        // A SEND that crosses the notice is dropped; a new producer is refused.
        client.send(&mut world, 1, 2, "c");
        client.expect_silence(&mut world);
        client.say(&mut world, &say::producer(&topic, 1, 90, Some(&name)));
        assert_eq!(
            client.error(&mut world, 90).0,
            ServerError::TopicTerminatedError
        );
        // The notice comes before the answer to the acknowledgment that made it so.
        let acked = say::ack(7, ids(7), false, Some(91));
        client.say(&mut world, &acked);
        world.run_until_idle();
        client.listen(&mut world);
        assert_eq!(client.kinds(), [Type::ReachedEndOfTopic, Type::AckResponse]);
        client.inbox.clear();
        client.flow(&mut world, 7, 1);
        client.expect(&mut world, Type::ReachedEndOfTopic);
        client.expect_silence(&mut world);
        // Again: the same answer, and nobody is told anything.
        assert_eq!(world.terminate(1, &topic), Some(Ok(position(last))));
        client.expect_silence(&mut world);
    }
}

#[test]
fn it_stays_so_after_a_crash_and_a_restart() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.send(&mut world, 1, 0, "a");
    let last = client.receipt(&mut world);
    assert_eq!(world.terminate(0, &topic), Some(Ok(position(last))));
    for clean in [false, true] {
        match clean {
            true => world.restart(),
            false => world.crash(|_, _| Kept::Nothing),
        }
        let mut client = Client::connect(&mut world, 0);
        client.say(&mut world, &say::producer(&topic, 1, 90, None));
        assert_eq!(
            client.error(&mut world, 90).0,
            ServerError::TopicTerminatedError
        );
        let subscription = format!("s{clean}");
        client.subscribe(&mut world, &topic, &subscription, false, 7);
        client.flow(&mut world, 7, 10);
        let got = client.messages(&mut world);
        assert_eq!(got.len(), 1);
        client.ack(&mut world, 7, vec![got[0].id()], true);
        client.expect(&mut world, Type::ReachedEndOfTopic);
        client.expect_silence(&mut world);
    }
}

/// What was appended before the end is answered with receipts, what came behind it with errors, all in order.
#[test]
fn sends_around_the_end_are_answered_in_order() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    world.disk_paused = true;
    client.send(&mut world, 1, 0, "a");
    world.run_until_idle();
    assert_eq!(world.terminate(0, &topic), None, "not durable yet");
    client.send(&mut world, 1, 1, "b");
    client.expect_silence(&mut world);
    world.disk_paused = false;
    world.run_until_idle();
    assert_eq!(world.terminated.len(), 1);
    client.listen(&mut world);
    assert_eq!(
        client.kinds(),
        [Type::SendReceipt, Type::CloseProducer, Type::SendError]
    );
    let error = client.inbox[2].command.send_error.clone().unwrap();
    assert_eq!(
        (error.sequence_id, error.error),
        (1, ServerError::TopicTerminatedError as i32)
    );
}

#[test]
fn an_empty_topic_ends_and_a_missing_one_does_not() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    assert_eq!(
        world.terminate(0, &topic),
        Some(Err(TerminateError::NotFound))
    );
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", false, 7);
    assert_eq!(world.terminate(0, &topic), Some(Ok(Position::EARLIEST)));
    client.expect(&mut world, Type::ReachedEndOfTopic);
    client.expect_silence(&mut world);
}

#[test]
fn a_broken_log_cannot_say_that_a_topic_ended() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", false, 7);
    world.break_disk(world.home(&topic).1);
    assert_eq!(world.terminate(0, &topic), Some(Err(TerminateError::Log)));
    assert_eq!(world.terminate(1, &topic), Some(Err(TerminateError::Log)));
    client.expect_silence(&mut world);
}
