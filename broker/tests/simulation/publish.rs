//! Producers: receipts, order, closing, limits.

use crate::harness::client::Client;
use crate::harness::{World, WorldConfig};

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
