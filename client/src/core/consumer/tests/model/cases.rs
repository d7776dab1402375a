//! What the topic holds and what happens, at random.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::build::Damage;
use super::super::config::SECOND;
use super::super::*;
use super::broker::Kind;

/// Something that happens.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Dispatch(u8),
    BrokerReads(u8),
    ClientReads(u8),
    Take(u8),
    Ack(u8),
    AckCumulative(u8),
    Nack(u8),
    RedeliverAll,
    Wait(u16),
    LoseConnection,
    BrokerCloses,
    Seek(u8),
    Pause,
    Resume,
    LastId,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (1u8..8).prop_map(Step::Dispatch),
        20 => (1u8..8).prop_map(Step::BrokerReads),
        20 => (1u8..8).prop_map(Step::ClientReads),
        20 => (1u8..12).prop_map(Step::Take),
        15 => any::<u8>().prop_map(Step::Ack),
        3 => any::<u8>().prop_map(Step::AckCumulative),
        5 => any::<u8>().prop_map(Step::Nack),
        1 => Just(Step::RedeliverAll),
        8 => (1u16..2000).prop_map(Step::Wait),
        1 => Just(Step::LoseConnection),
        1 => Just(Step::BrokerCloses),
        1 => any::<u8>().prop_map(Step::Seek),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::LastId),
    ]
}

fn kinds(message_permits: bool) -> impl Strategy<Value = Vec<Kind>> {
    let damage = if message_permits {
        prop_oneof![
            Just(Damage::Payload),
            Just(Damage::Metadata),
            Just(Damage::MetadataSigned),
            Just(Damage::Compression),
            Just(Damage::Batch),
        ]
        .boxed()
    } else {
        // Without the field a broker's charge for unreadable metadata cannot be known.
        prop_oneof![
            Just(Damage::Payload),
            Just(Damage::Compression),
            Just(Damage::Batch)
        ]
        .boxed()
    };
    let one = prop_oneof![
        4 => Just(vec![Kind::Single]),
        4 => (1u32..80).prop_map(|size| vec![Kind::Batch(size)]),
        2 => (2u32..20, damage).prop_map(|(size, damage)| vec![Kind::Bad(size, damage)]),
        2 => (2i32..5).prop_map(|of| (0..of).map(|index| Kind::Chunk(0, index, of)).collect()),
    ];
    let groups = prop::collection::vec(one, 1..25).prop_map(|groups| {
        let numbered = (1..).zip(groups).map(|(number, group)| {
            let numbered = group.into_iter().map(|kind| match kind {
                Kind::Chunk(_, index, of) => Kind::Chunk(number, index, of),
                other => other,
            });
            numbered.collect()
        });
        numbered.collect()
    });
    (groups, prop::collection::vec(0usize..3, 0..40))
        .prop_map(|(groups, turns)| mixed(groups, turns))
}

/// The chunks of several producers lie between each other: at each turn comes the next of one of the first three. Then all in order.
fn mixed(groups: Vec<VecDeque<Kind>>, turns: Vec<usize>) -> Vec<Kind> {
    let mut groups = VecDeque::from(groups);
    let mut all = Vec::new();
    for turn in turns {
        let Some(group) = groups.get_mut(turn) else {
            continue;
        };
        all.extend(group.pop_front());
        groups.retain(|group| !group.is_empty());
    }
    all.extend(groups.into_iter().flatten());
    all
}

fn config() -> impl Strategy<Value = ConsumerConfig> {
    (
        any::<bool>(),
        prop_oneof![Just(0u32), 1u32..4, 10u32..200],
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0), Just(100 * MILLI)],
        prop::option::of(1u32..4),
        prop::bool::weighted(0.3),
    )
        .prop_map(
            |(shared, queue, receipts, index_ack, timeout, group, dead, reader)| {
                let mut config = ConsumerConfig::new("t", "s");
                if shared {
                    config.subscription_type = SubscriptionType::Shared;
                    config.dead_letter = dead.map(DeadLetterPolicy::new);
                }
                config.durable = shared || !reader;
                config.start = StartPosition::Earliest;
                config.receiver_queue_size = queue;
                config.ack_receipt = receipts;
                config.batch_index_ack = index_ack;
                config.ack_timeout = if timeout { 10 * SECOND } else { 0 };
                config.ack_group_time = group;
                config.negative_ack_redelivery_delay = SECOND;
                config
            },
        )
}

pub(super) fn case() -> impl Strategy<Value = (ConsumerConfig, bool, Vec<Kind>, Vec<Step>)> {
    any::<bool>().prop_flat_map(|message_permits| {
        (
            config(),
            Just(message_permits),
            kinds(message_permits),
            prop::collection::vec(step(), 0..250),
        )
    })
}
