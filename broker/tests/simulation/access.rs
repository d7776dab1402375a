//! Access modes and topic epochs (PIP-68).

use vela_broker::store::memory::Kept;
use vela_proto::{self as proto, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

pub const SHARED: i32 = 0;
pub const EXCLUSIVE: i32 = 1;
pub const WAIT: i32 = 2;
pub const FENCING: i32 = 3;

/// Says PRODUCER with an access mode; the request.
pub fn ask(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    id: u64,
    mode: i32,
    epoch: Option<u64>,
) -> u64 {
    ask_named(world, client, topic, id, mode, epoch, None)
}

pub fn ask_named(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    id: u64,
    mode: i32,
    epoch: Option<u64>,
    name: Option<&str>,
) -> u64 {
    let request = client.request();
    let mut command = say::producer(topic, id, request, name);
    let producer = command.producer.as_mut().unwrap();
    producer.producer_access_mode = Some(mode);
    producer.topic_epoch = epoch;
    client.say(world, &command);
    request
}

pub fn success(
    world: &mut World,
    client: &mut Client,
    request: u64,
) -> proto::CommandProducerSuccess {
    let answer = client.expect(world, Type::ProducerSuccess).command;
    let answer = answer.producer_success.unwrap();
    assert_eq!(answer.request_id, request);
    answer
}

/// The epoch of one that is ready.
fn granted(world: &mut World, client: &mut Client, request: u64) -> Option<u64> {
    let answer = success(world, client, request);
    assert_eq!(answer.producer_ready, Some(true));
    answer.topic_epoch
}

fn refused(world: &mut World, client: &mut Client, request: u64) -> ServerError {
    client.error(world, request).0
}

/// `behaviour` as Pulsar 5.0.1 shows it: who is refused how.
#[test]
fn an_exclusive_producer_keeps_others_out() {
    for core in [0, 1] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(1, "t");
        let mut a = Client::connect(&mut world, core);
        let mut b = Client::connect(&mut world, 0);
        let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
        assert_eq!(granted(&mut world, &mut a, request), Some(0));
        let request = ask(&mut world, &mut b, &topic, 1, SHARED, None);
        assert_eq!(
            refused(&mut world, &mut b, request),
            ServerError::ProducerBusy
        );
        let request = ask(&mut world, &mut b, &topic, 1, EXCLUSIVE, None);
        assert_eq!(
            refused(&mut world, &mut b, request),
            ServerError::ProducerFenced
        );
        a.say(&mut world, &say::close_producer(1, 90));
        a.success(&mut world, 90);
        // Shared ones hear of the epoch too, and keep an exclusive one out.
        let request = ask(&mut world, &mut b, &topic, 1, SHARED, None);
        assert_eq!(granted(&mut world, &mut b, request), Some(0));
        let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
        assert_eq!(
            refused(&mut world, &mut a, request),
            ServerError::ProducerFenced
        );
        b.say(&mut world, &say::close_producer(1, 91));
        b.success(&mut world, 91);
        let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
        assert_eq!(granted(&mut world, &mut a, request), Some(1));
    }
}

#[test]
fn who_waits_is_told_so_and_has_its_turn_in_order() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut a = Client::connect(&mut world, 0);
    let mut b = Client::connect(&mut world, 0);
    let mut c = Client::connect(&mut world, 1);
    let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
    granted(&mut world, &mut a, request);
    let of_b = ask_named(&mut world, &mut b, &topic, 1, WAIT, None, Some("b"));
    let early = success(&mut world, &mut b, of_b);
    assert_eq!(
        (early.producer_ready, early.producer_name.as_str()),
        (Some(false), "b")
    );
    assert_eq!(
        (early.topic_epoch, early.last_sequence_id),
        (None, Some(-1))
    );
    let of_c = ask(&mut world, &mut c, &topic, 1, WAIT, None);
    success(&mut world, &mut c, of_c);
    // Everybody else is refused while somebody waits.
    let request = ask(&mut world, &mut c, &topic, 2, SHARED, None);
    assert_eq!(
        refused(&mut world, &mut c, request),
        ServerError::ProducerBusy
    );
    let repeat = ask(&mut world, &mut b, &topic, 1, WAIT, None);
    assert_eq!(
        refused(&mut world, &mut b, repeat),
        ServerError::ServiceNotReady
    );
    // What the first has sent is answered before the next one's turn.
    a.send(&mut world, 1, 0, "a");
    a.say(&mut world, &say::close_producer(1, 90));
    a.success(&mut world, 90);
    let ready = success(&mut world, &mut b, of_b);
    assert_eq!(
        (ready.producer_ready, ready.topic_epoch),
        (Some(true), Some(1))
    );
    assert_eq!(ready.producer_name, "b");
    b.send(&mut world, 1, 0, "b");
    b.receipt(&mut world);
    c.expect_silence(&mut world);
    world.cut(b.peer);
    assert_eq!(granted(&mut world, &mut c, of_c), Some(2));
    c.send(&mut world, 1, 0, "c");
    c.receipt(&mut world);
    c.subscribe(&mut world, &topic, "s", false, 7);
    c.flow(&mut world, 7, 10);
    assert_eq!(c.texts(&mut world), ["a", "b", "c"]);
}

#[test]
fn who_waits_may_leave_and_may_not_send() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut a = Client::connect(&mut world, 0);
    let mut b = Client::connect(&mut world, 0);
    // Shared ones are waited for as well.
    a.producer(&mut world, &topic, 1);
    let request = ask(&mut world, &mut b, &topic, 1, WAIT, None);
    success(&mut world, &mut b, request);
    b.say(&mut world, &say::close_producer(1, 90));
    b.success(&mut world, 90);
    a.producer(&mut world, &topic, 2);
    let request = ask(&mut world, &mut b, &topic, 1, WAIT, None);
    success(&mut world, &mut b, request);
    b.send(&mut world, 1, 0, "too early");
    world.run_until_idle();
    assert!(!world.is_open(b.peer));
    a.producer(&mut world, &topic, 3);
    let mut c = Client::connect(&mut world, 1);
    let request = ask(&mut world, &mut c, &topic, 1, WAIT, None);
    success(&mut world, &mut c, request);
    for id in 1..=3 {
        c.expect_silence(&mut world);
        a.say(&mut world, &say::close_producer(id, 90 + id));
        a.success(&mut world, 90 + id);
    }
    assert_eq!(granted(&mut world, &mut c, request), Some(0));
    assert_eq!(world.totals().producers, 1);
}

#[test]
fn fencing_puts_everybody_else_out_for_good() {
    for home in [0, 1] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(home, "t");
        let mut a = Client::connect(&mut world, 0);
        let mut b = Client::connect(&mut world, 0);
        let mut c = Client::connect(&mut world, 1);
        let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
        assert_eq!(granted(&mut world, &mut a, request), Some(0));
        let waits = ask(&mut world, &mut b, &topic, 1, WAIT, None);
        success(&mut world, &mut b, waits);
        let request = ask(&mut world, &mut c, &topic, 1, FENCING, None);
        assert_eq!(granted(&mut world, &mut c, request), Some(1));
        assert_eq!(
            refused(&mut world, &mut b, waits),
            ServerError::ProducerFenced
        );
        // The fenced one hears nothing until it sends.
        a.expect_silence(&mut world);
        a.send(&mut world, 1, 0, "too late");
        world.run_until_idle();
        assert!(!world.is_open(a.peer));
        let mut a = Client::connect(&mut world, 0);
        for mode in [EXCLUSIVE, WAIT, FENCING] {
            // While it is there, and by the epoch when it is not.
            if mode != WAIT {
                let request = ask(&mut world, &mut a, &topic, 1, mode, Some(0));
                assert_eq!(
                    refused(&mut world, &mut a, request),
                    ServerError::ProducerFenced
                );
            }
        }
        c.send(&mut world, 1, 0, "c");
        c.receipt(&mut world);
        c.say(&mut world, &say::close_producer(1, 90));
        c.success(&mut world, 90);
        for mode in [EXCLUSIVE, WAIT, FENCING] {
            let request = ask(&mut world, &mut a, &topic, 1, mode, Some(0));
            assert_eq!(
                refused(&mut world, &mut a, request),
                ServerError::ProducerFenced
            );
        }
        // One that comes back with its epoch keeps it; a higher one is taken over.
        let request = ask(&mut world, &mut c, &topic, 1, EXCLUSIVE, Some(1));
        assert_eq!(granted(&mut world, &mut c, request), Some(1));
        let request = ask(&mut world, &mut b, &topic, 1, FENCING, Some(7));
        assert_eq!(granted(&mut world, &mut b, request), Some(7));
        b.subscribe(&mut world, &topic, "s", false, 7);
        b.flow(&mut world, 7, 10);
        assert_eq!(b.texts(&mut world), ["c"]);
    }
}

#[test]
fn epochs_outlive_crashes_and_restarts() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    for epoch in 0..6 {
        let mut client = Client::connect(&mut world, 0);
        let request = ask(&mut world, &mut client, &topic, 1, EXCLUSIVE, None);
        assert_eq!(granted(&mut world, &mut client, request), Some(epoch));
        if epoch > 0 {
            client.say(&mut world, &say::close_producer(1, 90));
            let stale = ask(&mut world, &mut client, &topic, 2, FENCING, Some(epoch - 1));
            assert_eq!(
                refused(&mut world, &mut client, stale),
                ServerError::ProducerFenced
            );
        }
        match epoch % 2 {
            0 => world.crash(|_, _| Kept::Nothing),
            _ => world.restart(),
        }
    }
}

/// Its own former connection, whose peer is gone, does not keep an exclusive producer out.
#[test]
fn a_dead_holder_of_the_same_name_makes_room() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut dead = Client::connect(&mut world, 0);
    let mut back = Client::connect(&mut world, 0);
    let request = ask_named(
        &mut world,
        &mut dead,
        &topic,
        1,
        EXCLUSIVE,
        None,
        Some("me"),
    );
    assert_eq!(granted(&mut world, &mut dead, request), Some(0));
    let request = ask_named(
        &mut world,
        &mut back,
        &topic,
        1,
        EXCLUSIVE,
        Some(0),
        Some("me"),
    );
    back.expect_silence(&mut world);
    world.advance(5_000);
    world.run_until_idle();
    assert_eq!(granted(&mut world, &mut back, request), Some(0));
    assert!(!world.is_open(dead.peer));
}

#[test]
fn whoever_waits_for_a_topic_that_ends_is_refused() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut a = Client::connect(&mut world, 0);
    let mut b = Client::connect(&mut world, 0);
    let request = ask(&mut world, &mut a, &topic, 1, EXCLUSIVE, None);
    granted(&mut world, &mut a, request);
    let waits = ask(&mut world, &mut b, &topic, 1, WAIT, None);
    success(&mut world, &mut b, waits);
    world.terminate(0, &topic).unwrap().unwrap();
    assert_eq!(
        refused(&mut world, &mut b, waits),
        ServerError::TopicTerminatedError
    );
    a.expect(&mut world, Type::CloseProducer);
}
