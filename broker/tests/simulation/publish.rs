//! Producers: receipts, order, closing, limits.

use vela_broker::store::wal::WalError;
use vela_proto::{ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{Step, World, WorldConfig};

#[test]
fn receipts_come_in_order_and_messages_arrive() {
    for (home, core) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(home, "t");
        let mut client = Client::connect(&mut world, core);
        client.producer(&mut world, &topic, 1);
        for i in 0..10 {
            client.send(&mut world, 1, i, &format!("m{i}"));
        }
        let receipts: Vec<_> = (0..10).map(|_| client.receipt(&mut world)).collect();
        for (i, (sequence, ledger, entry)) in (0..).zip(&receipts) {
            assert_eq!((*sequence, *ledger, *entry), (i, receipts[0].1, i));
        }
        client.subscribe(&mut world, &topic, "s", false, 7);
        client.flow(&mut world, 7, 100);
        let expected: Vec<String> = (0..10).map(|i| format!("m{i}")).collect();
        assert_eq!(client.texts(&mut world), expected);
        client.expect_silence(&mut world);
        assert_eq!(world.retained_bytes(), 0);
    }
}

/// Everything in one write, before anything was answered.
#[test]
fn sends_right_behind_their_producer_are_stored() {
    for (home, core) in [(0, 0), (1, 0)] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(home, "t");
        let mut client = Client::connect(&mut world, core);
        client.say(&mut world, &say::producer(&topic, 3, 1, Some("me")));
        client.send(&mut world, 3, 0, "a");
        client.send(&mut world, 3, 1, "b");
        client.expect(&mut world, Type::ProducerSuccess);
        assert_eq!(
            (client.receipt(&mut world).0, client.receipt(&mut world).0),
            (0, 1)
        );
        assert!(world.is_open(client.peer));
    }
}

/// CLOSE and PRODUCER of the same id in one write: two producers, one after the other.
#[test]
fn an_id_is_closed_and_opened_again_in_one_write() {
    for (home, core) in [(0, 0), (1, 0)] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(home, "t");
        let mut client = Client::connect(&mut world, core);
        let first = client.producer(&mut world, &topic, 3);
        client.send(&mut world, 3, 0, "a");
        client.say(&mut world, &say::close_producer(3, 50));
        client.say(&mut world, &say::producer(&topic, 3, 51, None));
        client.send(&mut world, 3, 0, "b");
        client.say(&mut world, &say::close_producer(3, 52));
        world.run_until_idle();
        client.listen(&mut world);
        let kinds = [
            Type::SendReceipt,
            Type::Success,
            Type::ProducerSuccess,
            Type::SendReceipt,
            Type::Success,
        ];
        assert_eq!(client.kinds(), kinds);
        let second = client
            .expect(&mut world, Type::ProducerSuccess)
            .command
            .producer_success
            .unwrap();
        assert_eq!(second.request_id, 51);
        assert_ne!(second.producer_name, first);
        assert_eq!(world.totals().producers, 0);
    }
}

#[test]
fn a_repeated_producer_gets_the_same_answer() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    let name = client.producer(&mut world, &topic, 3);
    assert_eq!(client.producer(&mut world, &topic, 3), name);
    assert_eq!(world.totals().producers, 1);
}

#[test]
fn a_send_to_nobody_ends_the_connection() {
    let mut world = World::new(WorldConfig::default());
    let client = Client::connect(&mut world, 0);
    client.send(&mut world, 3, 0, "a");
    world.run_until_idle();
    assert!(!world.is_open(client.peer));
    assert_eq!(world.totals().counters.protocol_errors, 1);
    assert_eq!(world.retained_bytes(), 0);
}

#[test]
fn a_wrong_checksum_is_refused_among_the_receipts() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.send(&mut world, 1, 0, "a");
    let mut wrong = say::send(1, 1, None, 5, b"b");
    *wrong.last_mut().unwrap() ^= 1;
    world.feed(client.peer, &wrong);
    client.send(&mut world, 1, 2, "c");
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(
        client.kinds(),
        [Type::SendReceipt, Type::SendError, Type::SendReceipt]
    );
    let error = client
        .expect(&mut world, Type::SendError)
        .command
        .send_error
        .unwrap();
    assert_eq!(
        (error.sequence_id, error.error),
        (1, ServerError::ChecksumError as i32)
    );
}

/// With the limit unanswered, frames wait; they go on at half of it.
#[test]
fn pending_requests_hold_frames_at_the_limit_and_let_go_at_half() {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 4096;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    world.disk_paused = true;
    for i in 0..1500 {
        client.send(
            &mut world,
            1,
            i,
            "some text that fills the chunks a little faster",
        );
    }
    world.run_until_idle();
    assert!(!world.wants_frames(client.peer));
    assert_eq!(world.totals().counters.messages_in, 1000);
    let held = |world: &World| {
        let counts = world.engine(0).stats().counters.holds;
        let reason = vela_limiter::Reason::PendingRequests;
        (counts.holds(reason), counts.releases(reason))
    };
    assert_eq!(held(&world), (1, 0));
    // A held connection's deliveries, acks and pings wait too; its receipts do not.
    world.disk_paused = false;
    let mut receipts = 0;
    while !world.wants_frames(client.peer) {
        let (_, shard) = world.home(&topic);
        let step = world
            .steps()
            .into_iter()
            .find(|s| !matches!(s, Step::Write(_) | Step::WriteYounger(_)));
        world.apply(step.unwrap_or(Step::Write(shard)), usize::MAX);
        receipts += world.take(client.peer).len();
    }
    assert!(
        (450..=520).contains(&receipts),
        "went on after {receipts} receipts"
    );
    assert_eq!(held(&world), (1, 1));
    world.run_until_idle();
    receipts += world.take(client.peer).len();
    assert_eq!(receipts, 1500);
    assert_eq!(world.retained_bytes(), 0);
}

#[test]
fn a_full_lane_holds_the_sessions_that_fill_it_and_lets_them_go() {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 64 << 10;
    config.lane.budget_bytes = 512 << 10;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut clients: Vec<Client> = (0..2)
        .map(|core| Client::connect(&mut world, core))
        .collect();
    let text = "x".repeat(20_000);
    for client in &mut clients {
        client.producer(&mut world, &topic, 1);
    }
    world.disk_paused = true;
    for client in &clients {
        for i in 0..100 {
            client.send(&mut world, 1, i, &text);
        }
    }
    world.run_until_idle();
    for client in &clients {
        assert!(!world.wants_frames(client.peer));
        assert!(world.unread(client.peer) > 0, "the rest is not even read");
    }
    let stored = world.totals().counters.messages_in;
    assert!(stored < 100, "{stored} messages are more than the budget");
    world.disk_paused = false;
    for client in &mut clients {
        for i in 0..100 {
            assert_eq!(client.receipt(&mut world).0, i);
        }
    }
    assert_eq!(world.retained_bytes(), 0);
}

#[test]
fn a_full_disk_refuses_publishes_keeps_acks_waiting_and_heals() {
    refuses_and_heals(WalError::Full("no space left on device".into()), "full");
}

#[test]
fn so_does_a_log_out_of_open_files_and_names_the_cause() {
    refuses_and_heals(WalError::Exhausted("os error 24".into()), "open files");
}

fn refuses_and_heals(cause: WalError, told: &str) {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let (_, shard) = world.home(&topic);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.send(&mut world, 1, 0, "a");
    let (_, ledger, entry) = client.receipt(&mut world);
    client.subscribe(&mut world, &topic, "s", false, 7);
    world.fail_disk(shard, cause);
    client.send(&mut world, 1, 1, "b");
    client.expect_silence(&mut world);
    assert!(world.disk_full(shard));
    client.send(&mut world, 1, 2, "c");
    let error = client
        .expect(&mut world, Type::SendError)
        .command
        .send_error
        .unwrap();
    assert_eq!(
        (error.sequence_id, error.error),
        (2, ServerError::PersistenceError as i32)
    );
    assert!(error.message.contains(told), "{}", error.message);
    // Reads go on; an ack is taken, and answered when it is on disk.
    client.flow(&mut world, 7, 10);
    assert_eq!(client.texts(&mut world), ["a"]);
    client.say(
        &mut world,
        &say::ack(7, vec![say::id(ledger, entry)], false, Some(99)),
    );
    client.expect_silence(&mut world);
    world.free_disk(shard);
    world.run_until_idle();
    assert_eq!(client.receipt(&mut world).0, 1);
    let answer = client
        .expect(&mut world, Type::AckResponse)
        .command
        .ack_response
        .unwrap();
    assert_eq!((answer.request_id, answer.error), (Some(99), None));
    // What comes behind the lost one is refused until the client has come back and sends in order again.
    client.send(&mut world, 1, 3, "d");
    let error = client.expect(&mut world, Type::SendError).command;
    assert_eq!(error.send_error.unwrap().sequence_id, 3);
    client.say(&mut world, &say::close_producer(1, 98));
    client.success(&mut world, 98);
    client.producer(&mut world, &topic, 1);
    for (sequence, text) in [(2, "c"), (3, "d")] {
        client.send(&mut world, 1, sequence, text);
        assert_eq!(client.receipt(&mut world).0, sequence);
    }
    assert_eq!(client.texts(&mut world), ["b", "c", "d"]);
}

#[test]
fn a_broken_disk_refuses_everything_that_waits() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let (_, shard) = world.home(&topic);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.send(&mut world, 1, 0, "a");
    let (_, ledger, entry) = client.receipt(&mut world);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 10);
    assert_eq!(client.texts(&mut world), ["a"]);
    world.break_disk(shard);
    client.say(
        &mut world,
        &say::ack(7, vec![say::id(ledger, entry)], false, Some(99)),
    );
    client.send(&mut world, 1, 1, "b");
    let answer = client
        .expect(&mut world, Type::AckResponse)
        .command
        .ack_response
        .unwrap();
    assert_eq!(
        (answer.request_id, answer.error),
        (Some(99), Some(ServerError::PersistenceError as i32))
    );
    client.expect(&mut world, Type::SendError);
    // And what comes later.
    client.say(
        &mut world,
        &say::ack(7, vec![say::id(ledger, entry)], false, Some(100)),
    );
    let answer = client
        .expect(&mut world, Type::AckResponse)
        .command
        .ack_response
        .unwrap();
    assert_eq!(
        (answer.request_id, answer.error),
        (Some(100), Some(ServerError::PersistenceError as i32))
    );
    client.send(&mut world, 1, 2, "c");
    client.expect(&mut world, Type::SendError);
    client.say(&mut world, &say::producer(&topic, 2, 101, None));
    assert_eq!(
        client.error(&mut world, 101).0,
        ServerError::PersistenceError
    );
    client.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "new", false, 8, 102)),
    );
    assert_eq!(
        client.error(&mut world, 102).0,
        ServerError::PersistenceError
    );
    client.say(&mut world, &say::unsubscribe(7, 103, false));
    assert_eq!(
        client.error(&mut world, 103).0,
        ServerError::PersistenceError
    );
    assert_eq!((world.totals().producers, world.totals().consumers), (1, 0));
    assert!(world.is_open(client.peer));
}

/// A producer name is taken over from a holder that does not answer, not from one that does.
#[test]
fn a_name_is_taken_over_from_a_dead_holder_only() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut holder = Client::connect(&mut world, 0);
    let mut newcomer = Client::connect(&mut world, 1);
    holder.say(&mut world, &say::producer(&topic, 1, 10, Some("me")));
    holder.expect(&mut world, Type::ProducerSuccess);
    newcomer.say(&mut world, &say::producer(&topic, 1, 11, Some("me")));
    holder.expect(&mut world, Type::Ping);
    newcomer.expect_silence(&mut world);
    holder.say(&mut world, &say::pong());
    assert_eq!(newcomer.error(&mut world, 11).0, ServerError::ProducerBusy);
    // Again, with a SEND behind it, and silence from the holder.
    newcomer.say(&mut world, &say::producer(&topic, 1, 12, Some("me")));
    newcomer.send(&mut world, 1, 0, "a");
    holder.expect(&mut world, Type::Ping);
    world.advance(4_999);
    newcomer.expect_silence(&mut world);
    world.advance(1);
    newcomer.expect(&mut world, Type::ProducerSuccess);
    assert_eq!(newcomer.receipt(&mut world).0, 0);
    assert!(!world.is_open(holder.peer));
}

#[test]
fn silence_ends_a_connection_after_two_intervals() {
    let mut world = World::new(WorldConfig::default());
    let mut client = Client::connect(&mut world, 0);
    let mute = world.open(0);
    world.advance(30_000);
    client.expect(&mut world, Type::Ping);
    assert!(!world.is_open(mute), "no CONNECT came");
    client.say(&mut world, &say::pong());
    world.run_until_idle();
    world.advance(30_000);
    client.expect(&mut world, Type::Ping);
    world.advance(30_000);
    world.run_until_idle();
    assert!(!world.is_open(client.peer));
    assert_eq!(world.totals().connections, 0);
}

/// Frames cut at every byte are the same frames, and what is received is freed.
#[test]
fn any_cut_of_the_stream_gives_the_same_frames() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for i in 0..5 {
        client.send(&mut world, 1, i, &"y".repeat(i as usize * 3000));
    }
    let mut size = 1;
    loop {
        let steps = world.steps();
        if steps.is_empty() {
            break;
        }
        for step in steps {
            if !matches!(step, Step::WriteYounger(_)) {
                size = size * 7 % 1009;
                world.apply(step, size);
            }
        }
    }
    for i in 0..5 {
        assert_eq!(client.receipt(&mut world).0, i);
    }
    assert_eq!(world.retained_bytes(), 0);
}

/// CLOSE_PRODUCER is answered behind everything that was sent, refused or not.
#[test]
fn a_close_is_answered_behind_a_refusal() {
    for good_first in [true, false] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, 0);
        let mut other = Client::connect(&mut world, 1);
        client.producer(&mut world, &topic, 1);
        other.producer(&mut world, &topic, 1);
        world.disk_paused = true;
        other.send(&mut world, 1, 0, "keeps the log busy");
        other.expect_silence(&mut world);
        if good_first {
            client.send(&mut world, 1, 0, "a");
        }
        let mut wrong = say::send(1, 1, None, 5, b"b");
        *wrong.last_mut().unwrap() ^= 1;
        world.feed(client.peer, &wrong);
        client.say(&mut world, &say::close_producer(1, 50));
        client.expect_silence(&mut world);
        world.disk_paused = false;
        world.run_until_idle();
        client.listen(&mut world);
        let kinds = [Type::SendReceipt, Type::SendError, Type::Success];
        assert_eq!(client.kinds(), kinds[usize::from(!good_first)..]);
    }
}

#[test]
fn a_producer_that_is_closed_at_once_is_answered_in_order() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.say(&mut world, &say::producer(&topic, 1, 50, None));
    client.say(&mut world, &say::close_producer(1, 51));
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(client.kinds(), [Type::ProducerSuccess, Type::Success]);
}

/// A disk that breaks under a PRODUCER and its SENDs: the SENDs are refused first, so that they are not taken for those of the id's next user.
#[test]
fn a_broken_disk_refuses_the_sends_of_a_producer_before_the_producer() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let (_, shard) = world.home(&topic);
    let mut client = Client::connect(&mut world, 0);
    world.break_disk(shard);
    client.say(&mut world, &say::producer(&topic, 1, 50, None));
    client.send(&mut world, 1, 0, "a");
    client.send(&mut world, 1, 1, "b");
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(
        client.kinds(),
        [Type::SendError, Type::SendError, Type::Error]
    );
    assert!(world.is_open(client.peer));
}

/// Bytes of unanswered SENDs hold every connection of the core, those that come later too, and let all go at half.
#[test]
fn publish_bytes_hold_a_core_and_release_it() {
    let mut config = WorldConfig {
        cores: 1,
        shards: 1,
        ..WorldConfig::default()
    };
    config.settings.max_message_publish_buffer_bytes = 8192;
    let mut world = World::new(config);
    let mut first = Client::connect(&mut world, 0);
    first.producer(&mut world, "t", 1);
    let mut second = Client::connect(&mut world, 0);
    second.producer(&mut world, "u", 1);
    world.disk_paused = true;
    let text = "x".repeat(1000);
    for n in 0..40 {
        first.send(&mut world, 1, n, &text);
        world.run_until_idle();
    }
    // A newcomer gets its CONNECTED, and waits then.
    let third = Client::connect(&mut world, 0).peer;
    for peer in [first.peer, second.peer, third] {
        assert!(
            !world.wants_frames(peer),
            "{peer:?} is held for the bytes of another"
        );
    }
    assert_eq!(
        world.engine(0).held()[vela_limiter::Reason::PendingBytes as usize],
        3
    );
    second.send(&mut world, 1, 0, "waits");
    world.disk_paused = false;
    world.run_until_idle();
    for n in 0..40 {
        assert_eq!(first.receipt(&mut world).0, n);
    }
    assert_eq!(second.receipt(&mut world).0, 0);
    assert!(world.wants_frames(third));
    assert_eq!(
        world.engine(0).held()[vela_limiter::Reason::PendingBytes as usize],
        0
    );
    assert_eq!(world.retained_bytes(), 0);
}
