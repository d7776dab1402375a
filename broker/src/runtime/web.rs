//! The broker as HTTP sees it.

use super::disk::SharedMeta;
use super::dynamic::Dynamic;
use super::memory::Intake;
use super::port::Figures;
use super::post::Post;
use crate::admin::{Broker, Configuration, CoreSample, MemorySample, Place, Sample};
use crate::engine::Message;
use crate::engine::admin::{Asker, Request};
use crate::engine::message::CoreId;
use crate::store::meta::{MetaError, MetaRequest, MetaResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use vela_limiter::Holder;

/// What answers HTTP's questions.
pub(super) struct Web {
    pub(super) ready: Arc<AtomicBool>,
    pub(super) post: Arc<Post<Message>>,
    pub(super) figures: Vec<Arc<Mutex<Figures>>>,
    pub(super) intake: Arc<Intake>,
    pub(super) dynamic: Arc<Dynamic>,
    /// Weak: the store closes with the last core, not with a connection of HTTP.
    pub(super) meta: Weak<SharedMeta>,
    pub(super) place: Place,
}

impl Broker for Web {
    fn sample(&self) -> Sample {
        Sample {
            ready: self.ready.load(Ordering::Acquire),
            memory: memory_sample(&self.intake),
            cores: (0..)
                .zip(&self.figures)
                .map(|(core, figures)| {
                    let figures = figures
                        .lock()
                        .map(|figures| figures.clone())
                        .unwrap_or_default();
                    CoreSample {
                        turns: self.post.turns(core),
                        stalls: self.post.stalls(core),
                        stalled: self.post.is_stalled(core),
                        connections: self.post.connections(core),
                        producers: figures.producers,
                        consumers: figures.consumers,
                        topics: figures.topics,
                        subscriptions: figures.subscriptions,
                        messages_in: figures.messages_in,
                        messages_out: figures.messages_out,
                        bytes_in: figures.bytes_in,
                        bytes_out: figures.bytes_out,
                        acks: figures.acks,
                        messages_dropped: figures.messages_dropped,
                        publish_errors: figures.publish_errors,
                        protocol_errors: figures.protocol_errors,
                        held: figures.held,
                        throttled: figures.throttled,
                        rate_limited: figures.rate_limited,
                        rate_limited_topics: figures.rate_limited_topics,
                        holds: figures.holds,
                    }
                })
                .collect(),
        }
    }

    fn configuration(&self) -> Configuration {
        self.dynamic.configuration()
    }

    fn metadata(&self, request: MetaRequest, done: Box<dyn FnOnce(MetaResult) + Send>) {
        match self.meta.upgrade() {
            Some(meta) => meta.request(request, done),
            None => done(Err(MetaError::Closed)),
        }
    }

    fn place(&self) -> Place {
        self.place.clone()
    }

    fn ask(
        &self,
        core: CoreId,
        asker: Asker,
        request: Box<Request>,
    ) -> Result<(), (Asker, Box<Request>)> {
        // A stopping core takes no more; dropping the asker says so.
        if self.post.is_stopping() {
            return Ok(());
        }
        let mail = vec![Message::Admin { asker, request }];
        match self.post.send(core, core, mail) {
            Ok(()) => Ok(()),
            Err(mut back) => match back.pop() {
                Some(Message::Admin { asker, request }) => Err((asker, request)),
                _ => Ok(()),
            },
        }
    }
}

fn memory_sample(intake: &Intake) -> MemorySample {
    let limiter = &intake.limiter;
    let (transitions, state) = (limiter.transitions(), limiter.state());
    let (stood, evicted) = intake.closed();
    let (holds, releases) = intake.holds();
    MemorySample {
        retained: limiter.retained(),
        throttled: state.throttled,
        crowded: state.crowded,
        active: state.active,
        limit: u64::try_from(state.limit).unwrap_or(0),
        budget: limiter.memory().budget(),
        holders: Holder::ALL.map(|holder| (holder.name(), limiter.memory().held_by(holder))),
        throttles: transitions.throttled,
        clears: transitions.cleared,
        activations: transitions.activated,
        stand_downs: transitions.stood_down,
        held_connections: intake.held(),
        holds,
        releases,
        frames_stood: stood,
        frames_evicted: evicted,
        trickles: intake.trickles.load(std::sync::atomic::Ordering::Relaxed),
    }
}
