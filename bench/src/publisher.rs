//! The publishing side of one executor: a window of outstanding sends, at a fixed rate or as fast as it allows, every receipt matched.

use std::sync::Arc;

use bytes::BytesMut;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;

use crate::connection::describe;
use crate::error::{Context as _, Result, fail};
use crate::links::Links;
use crate::measure::{Recorder, monotonic_ns, unix_ms};
use crate::message::{FIRST_SEQUENCE, LAST_SEQUENCE, Template};
use crate::pending::{Pending, Sent};
use crate::schedule::Schedule;
use crate::setup::{DevicePart, ProducerPart};
use crate::verify::{Kind, Offence, Verification};
use crate::wire::{RawFrame, Receipt};

/// A connection with more than this to write takes no more sends, in bytes: the socket is full, and the broker decides.
const MAX_BACKLOG: usize = 512 * 1024;
/// Sends between two looks at the clock while a window is filled.
const SENDS_PER_LOOK: u32 = 32;
/// Devices passed over in a row because their connections are full, before the rest has to wait too.
const MAX_SKIPPED: usize = 256;

struct Producer {
    /// Index of the connection.
    link: usize,
    template: Template,
    pending: Pending,
    next_sequence: u64,
    topic: u32,
}

struct Device {
    producer: u32,
    id: u32,
    /// Messages sent, and the sequence of the next.
    sent: u64,
    /// Messages with receipt.
    settled: u64,
}

/// What may be sent.
#[derive(Debug, Clone)]
pub(crate) enum Pace {
    /// Nothing.
    Stopped,
    /// As much as the window allows.
    Window,
    /// So many messages more, as fast as the window allows.
    Backlog(u64),
    /// What is due.
    Rate(Schedule),
}

/// All producers of an executor. Their ids are their indexes.
pub(crate) struct Publisher {
    producers: Vec<Producer>,
    devices: Vec<Device>,
    topics: Arc<[String]>,
    /// The device to send next.
    turn: usize,
    window: usize,
    batch: u64,
    pub(crate) pace: Pace,
    /// What is due from this time on is not sent.
    last_due: u64,
    /// Messages that were due and never sent.
    pub(crate) unsent: u64,
    /// SENDs without receipt.
    pub(crate) outstanding: usize,
    /// Messages sent.
    pub(crate) sent: u64,
    /// Messages with receipt.
    pub(crate) settled: u64,
    /// From send or due time to receipt.
    pub(crate) latencies: Recorder,
    /// How late a message due in the measured window left at worst, in nanoseconds.
    pub(crate) late_max: u64,
    pub(crate) verification: Verification,
}

impl Publisher {
    pub(crate) fn new(
        producers: Vec<ProducerPart>,
        devices: &[DevicePart],
        topics: Arc<[String]>,
        window: usize,
        batch: u32,
    ) -> Result<Self> {
        let batch = u64::from(batch);
        let producers = producers
            .into_iter()
            .map(|part| Producer {
                link: part.link,
                template: part.template,
                pending: Pending::new(FIRST_SEQUENCE, batch),
                next_sequence: FIRST_SEQUENCE,
                topic: part.topic,
            })
            .collect();
        let devices = devices
            .iter()
            .map(|part| Device {
                producer: part.producer,
                id: part.id,
                sent: 0,
                settled: 0,
            })
            .collect();
        Ok(Self {
            producers,
            devices,
            topics,
            turn: 0,
            window,
            batch,
            pace: Pace::Stopped,
            last_due: u64::MAX,
            unsent: 0,
            outstanding: 0,
            sent: 0,
            settled: 0,
            latencies: Recorder::new()?,
            late_max: 0,
            verification: Verification::default(),
        })
    }

    /// Sends what the pace, the window and the sockets allow. Answers how many.
    ///
    /// # Errors
    /// If a producer has used up its sequence ids, or a connection is gone.
    pub(crate) fn fill(&mut self, links: &mut Links) -> Result<usize> {
        let mut now = monotonic_ns();
        let mut now_ms = unix_ms();
        let mut looks = SENDS_PER_LOOK;
        let (mut skipped, mut sends) = (0, 0);
        while self.outstanding < self.window && skipped < MAX_SKIPPED {
            let Some((device, producer)) = self.devices.get_mut(self.turn).and_then(|device| {
                let producer = self.producers.get_mut(device.producer as usize)?;
                Some((device, producer))
            }) else {
                if self.turn == 0 {
                    break;
                }
                self.turn = 0;
                continue;
            };
            let len = producer.template.len();
            if links.backlog(producer.link) + len > MAX_BACKLOG.max(2 * len) {
                skipped += 1;
                self.turn += 1;
                continue;
            }
            if producer.next_sequence + self.batch - 1 > LAST_SEQUENCE {
                return fail(format!(
                    "a producer can send {} messages; ask for a shorter run, more clients or more topics",
                    LAST_SEQUENCE - FIRST_SEQUENCE + 1
                ));
            }
            let time = match &mut self.pace {
                Pace::Stopped | Pace::Backlog(0) => break,
                Pace::Window => now,
                Pace::Backlog(left) => {
                    *left = left.saturating_sub(self.batch);
                    now
                }
                Pace::Rate(schedule) if schedule.group_due(self.batch) >= self.last_due => break,
                Pace::Rate(schedule) => match schedule.take_group(self.batch, now) {
                    Some(due) => due,
                    None => break,
                },
            };
            let Some(out) = links.output(producer.link) else {
                return fail("a publishing connection is gone");
            };
            let message = (device.id, device.sent);
            producer
                .template
                .write(producer.next_sequence, now_ms, time, message, out);
            producer.next_sequence += self.batch;
            producer.pending.push(Sent {
                time,
                device: self.turn as u32,
                device_sequence: device.sent,
            });
            device.sent += self.batch;
            if self.latencies.measured.contains(&time) {
                self.late_max = self.late_max.max(now - time);
            }
            self.outstanding += 1;
            self.sent += self.batch;
            self.turn += 1;
            skipped = 0;
            sends += 1;
            looks -= 1;
            if looks == 0 {
                (now, now_ms, looks) = (monotonic_ns(), unix_ms(), SENDS_PER_LOOK);
            }
        }
        Ok(sends)
    }

    /// A frame of a publishing connection.
    ///
    /// # Errors
    /// If it is an error of the broker, or makes no sense.
    pub(crate) fn handle(
        &mut self,
        frame: RawFrame<'_>,
        out: &mut BytesMut,
        now: u64,
    ) -> Result<()> {
        let Some(receipt) = Receipt::parse(frame.command) else {
            return other_command(frame, out);
        };
        let Some(producer) = self.producers.get_mut(receipt.producer_id as usize) else {
            return fail(format!(
                "a receipt came for the unknown producer {}",
                receipt.producer_id
            ));
        };
        let settlement = producer.pending.settle(&receipt);
        let topic = producer.topic;
        if let Some(sent) = settlement.settled {
            self.outstanding -= 1;
            self.settled += self.batch;
            if let Some(device) = self.devices.get_mut(sent.device as usize) {
                device.settled += self.batch;
            }
            self.latencies.record(sent.time, now, self.batch);
        }
        self.outstanding -= settlement.skipped.len();
        for sent in settlement.skipped {
            self.unanswered(topic, sent, "the receipt of a later one came");
        }
        if let Some(mismatch) = settlement.mismatch {
            self.verification.wrong_receipts += 1;
            let offence = self.offence(
                Kind::WrongReceipt,
                topic,
                settlement.settled,
                &mismatch.to_string(),
            );
            self.verification.name(|| offence);
        }
        Ok(())
    }

    /// When the next send is due, if there is a schedule and room for it.
    pub(crate) fn next_due(&self) -> Option<u64> {
        match &self.pace {
            Pace::Rate(schedule) if self.outstanding < self.window => {
                Some(schedule.group_due(self.batch)).filter(|due| *due < self.last_due)
            }
            _ => None,
        }
    }

    /// Load ends: only what was due before `end` is still sent. To leave it out would hide the messages that waited longest.
    pub(crate) fn finish(&mut self, end: u64) {
        match &self.pace {
            Pace::Rate(_) => self.last_due = end,
            _ => self.pace = Pace::Stopped,
        }
    }

    /// Whether something was due before the end and has not been sent.
    pub(crate) fn is_behind(&self) -> bool {
        match &self.pace {
            Pace::Rate(schedule) => schedule.group_due(self.batch) < self.last_due,
            _ => false,
        }
    }

    /// Nothing is sent any more; what was due counts as unsent.
    pub(crate) fn stop(&mut self) {
        if let Pace::Rate(schedule) = &self.pace {
            self.unsent += schedule.left_before(self.last_due.min(monotonic_ns()));
        }
        self.pace = Pace::Stopped;
    }

    /// Each device's number, its messages with receipt, and its topic.
    pub(crate) fn settled_devices(&self) -> impl Iterator<Item = (u32, u64, u32)> + Clone {
        self.devices.iter().map(|device| {
            let topic = self
                .producers
                .get(device.producer as usize)
                .map_or(0, |producer| producer.topic);
            (device.id, device.settled, topic)
        })
    }

    /// Counts what is still outstanding as unanswered: nobody waits for it any more.
    pub(crate) fn give_up(&mut self) {
        let left: Vec<_> = self
            .producers
            .iter()
            .flat_map(|producer| producer.pending.iter().map(|sent| (producer.topic, *sent)))
            .collect();
        for (topic, sent) in left {
            self.unanswered(topic, sent, "no receipt came");
        }
        self.outstanding = 0;
    }

    fn unanswered(&mut self, topic: u32, sent: Sent, why: &str) {
        self.verification.unanswered += self.batch;
        let offence = self.offence(Kind::Unanswered, topic, Some(sent), why);
        self.verification.name(|| offence);
    }

    fn offence(&self, kind: Kind, topic: u32, sent: Option<Sent>, why: &str) -> Offence {
        let device = sent.and_then(|sent| self.devices.get(sent.device as usize));
        Offence {
            kind,
            topic: self.topics.get(topic as usize).cloned().unwrap_or_default(),
            subscription: None,
            device: device.map(|device| device.id),
            sequence: sent.map(|sent| sent.device_sequence),
            expected: None,
            detail: why.to_owned(),
        }
    }
}

fn other_command(frame: RawFrame<'_>, out: &mut BytesMut) -> Result<()> {
    let command = decode_command(frame.command)
        .context(|| "a producer's connection carries a damaged command".into())?;
    match command.r#type() {
        Type::Ping => encode::pong(out),
        Type::Pong => {}
        _ => return fail(format!("a producer got {}", describe(&command))),
    }
    Ok(())
}
