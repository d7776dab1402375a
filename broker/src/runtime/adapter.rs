//! The broker's engine as the runtime's [`CoreEngine`].

use super::port::{
    ConnId, CoreEngine, CoreId, Figures, Held, NetworkEffects, Now, Output, ReadRule,
};
use crate::engine::{Engine, Message, OutBuf};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use vela_codec::{Accounting, Frame};

impl Output for OutBuf {
    fn io_slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        OutBuf::io_slices(self, into)
    }

    fn consume(&mut self, n: usize) {
        OutBuf::consume(self, n);
    }

    fn queued(&self) -> usize {
        OutBuf::len(self)
    }
}

impl CoreEngine for Engine {
    type Message = Message;
    type Out = OutBuf;

    fn count_in(&mut self, accounting: Option<&Arc<dyn Accounting>>) {
        Engine::count_in(self, accounting.cloned());
    }

    fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> ConnId {
        Engine::accept(self, peer, local, now)
    }

    fn max_frame(&self) -> usize {
        Engine::max_frame(self)
    }

    fn wants_frames(&mut self, conn: ConnId) -> bool {
        Engine::wants_frames(self, conn)
    }

    fn passing(&mut self, conn: ConnId, frames: &VecDeque<Frame>) -> Option<usize> {
        Engine::passing(self, conn, frames)
    }

    fn read_rule(&mut self, conn: ConnId) -> ReadRule {
        Engine::read_rule(self, conn)
    }

    fn serves_in_small_parts(&self) -> bool {
        Engine::several_publish(self)
    }

    fn frame(&mut self, conn: ConnId, frame: Frame, now: Now) {
        Engine::frame(self, conn, frame, now);
    }

    fn closed(&mut self, conn: ConnId, now: Now) {
        Engine::closed(self, conn, now);
    }

    fn output(&mut self, conn: ConnId) -> Option<&mut OutBuf> {
        Engine::output(self, conn)
    }

    fn sent(&mut self, conn: ConnId, now: Now) {
        Engine::sent(self, conn, now);
    }

    fn blocked(&mut self, conn: ConnId, now: Now) {
        Engine::blocked(self, conn, now);
    }

    fn mail(&mut self, from: CoreId, batch: Vec<Message>, now: Now) {
        Engine::mail(self, from, batch, now);
    }

    fn tick(&mut self, now: Now) {
        Engine::tick(self, now);
    }

    fn next_wakeup(&self) -> Option<u64> {
        Engine::next_wakeup(self)
    }

    fn end_of_turn(&mut self, now: Now) -> bool {
        Engine::end_of_turn(self, now)
    }

    fn shutdown(&mut self, _: Now) {
        Engine::shutdown(self);
    }

    fn is_quiet(&self) -> bool {
        Engine::is_quiet(self)
    }

    fn checkpoint(&mut self, _: Now) {
        Engine::checkpoint(self);
    }

    fn take_network(&mut self, into: &mut NetworkEffects<Message>) {
        let effects = self.effects();
        into.dirty.append(&mut effects.dirty);
        into.resumed.append(&mut effects.resumed);
        into.close.append(&mut effects.close);
        into.mail.resize_with(effects.mail.len(), Vec::new);
        for (to, from) in into.mail.iter_mut().zip(&mut effects.mail) {
            to.append(from);
        }
    }

    fn excused(&mut self, conn: ConnId, now: Now) {
        Engine::excused(self, conn, now);
    }

    fn may_hide_life(&self, frames: &VecDeque<Frame>) -> bool {
        Engine::may_hide_life(self, frames)
    }

    fn buffer_memory(&self) -> Held {
        let memory = Engine::buffer_memory(self);
        Held {
            log: memory.log,
            cache: memory.cache,
            outbound: 0,
        }
    }

    fn shrink_cache(&mut self, bytes: u64) {
        Engine::shrink_cache(self, bytes);
    }

    fn figures(&self) -> Figures {
        let stats = self.stats();
        Figures {
            connections: stats.connections as u64,
            producers: stats.producers as u64,
            consumers: stats.consumers as u64,
            topics: stats.topics as u64,
            subscriptions: stats.subscriptions as u64,
            messages_in: stats.counters.messages_in,
            messages_out: stats.counters.messages_out,
            bytes_in: stats.counters.bytes_in,
            bytes_out: stats.counters.bytes_out,
            acks: stats.counters.acks,
            messages_dropped: stats.counters.messages_dropped,
            publish_errors: stats.counters.publish_errors,
            protocol_errors: stats.counters.protocol_errors,
            held: self.held(),
            throttled: self.held_connections(),
            rate_limited: stats.counters.topic_rate_holds,
            holds: stats.counters.holds,
            ..Figures::default()
        }
    }

    fn rate_limited_topics(&self) -> Vec<(String, u64)> {
        Engine::rate_limited_topics(self)
    }
}
