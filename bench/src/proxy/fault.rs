//! The faults, on whole frames and without IO: what a broken broker could do to a MESSAGE or a SEND.

use std::collections::{HashMap, VecDeque};

use bytes::BytesMut;
use clap::Args;
use vela_codec::checksum::crc32c;
use vela_codec::encode;
use vela_codec::entry::Entry;
use vela_codec::hot::SendView;
use vela_proto::base_command::Type;

use crate::wire::{Delivery, RawFrame, Receipt};

/// Which faults to make; each number counts frames of one kind through the whole proxy, from 1.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct FaultArgs {
    /// Keep the Nth MESSAGE from its consumer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) drop: Option<u64>,
    /// Keep the Nth SEND from the broker, and answer it with a receipt that looks real
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) drop_send: Option<u64>,
    /// Deliver the Nth MESSAGE twice
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) duplicate: Option<u64>,
    /// Deliver the Nth MESSAGE only after the next one of the same key
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) reorder: Option<u64>,
    /// Alter one byte of the payload of the Nth MESSAGE; its checksum no longer matches, unless --recompute-checksum
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) flip: Option<u64>,
    /// Which byte --flip alters, from the payload's end
    #[arg(long, default_value_t = 0, value_name = "I")]
    pub(crate) flip_byte: usize,
    /// With --flip: make the checksum match the altered payload
    #[arg(long)]
    pub(crate) recompute_checksum: bool,
    /// Not only the Nth, but every Nth
    #[arg(long)]
    pub(crate) repeat: bool,
}

/// What all connections of a proxy have in common: the counts that choose frames.
#[derive(Debug)]
pub(crate) struct Faults {
    args: FaultArgs,
    messages: u64,
    sends: u64,
}

impl Faults {
    pub(crate) fn new(args: FaultArgs) -> Self {
        Self {
            args,
            messages: 0,
            sends: 0,
        }
    }

    /// Whether SENDs have to be looked at.
    pub(crate) fn drops_sends(&self) -> bool {
        self.args.drop_send.is_some()
    }

    fn due(&self, wanted: Option<u64>, count: u64) -> bool {
        wanted.is_some_and(|n| count == n || (self.args.repeat && count.is_multiple_of(n)))
    }
}

/// One connection, as far as faults need to know it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    held: Option<Held>,
    /// SENDs without a receipt, per producer and in order; the swallowed ones are marked. Only kept where SENDs are dropped.
    /// As many as the client sends without waiting for receipts: its own window is the bound.
    unanswered: HashMap<u64, VecDeque<(u64, bool)>>,
    /// Where the last message of each producer is: what a forged receipt has to lie behind.
    positions: HashMap<u64, (u64, u64)>,
}

/// A MESSAGE that waits for the next one of its key. One at a time; if none comes, it stays, which is a loss.
#[derive(Debug)]
struct Held {
    frame: Vec<u8>,
    key: Vec<u8>,
}

impl Link {
    /// Passes on a frame from the broker. Answers what was done to it, if anything.
    pub(crate) fn relay_to_client(
        &mut self,
        frame: RawFrame<'_>,
        faults: &mut Faults,
        out: &mut BytesMut,
    ) -> Option<String> {
        if frame.type_is(Type::Message) {
            return self.message(frame, faults, out);
        }
        append(frame, out);
        if frame.type_is(Type::SendReceipt)
            && faults.drops_sends()
            && let Some(receipt) = Receipt::parse(frame.command)
        {
            self.answered(&receipt);
            self.forge(receipt.producer_id, out);
        }
        None
    }

    /// Passes on a SEND of the client; `back` goes to the client. Answers what was done to it, if anything.
    pub(crate) fn relay_send(
        &mut self,
        frame: RawFrame<'_>,
        faults: &mut Faults,
        out: &mut BytesMut,
        back: &mut BytesMut,
    ) -> Option<String> {
        faults.sends += 1;
        let swallow = faults.due(faults.args.drop_send, faults.sends);
        let Ok(send) = SendView::parse(frame.command) else {
            append(frame, out);
            return None;
        };
        self.unanswered
            .entry(send.producer_id)
            .or_default()
            .push_back((send.sequence_id, swallow));
        if !swallow {
            append(frame, out);
            return None;
        }
        // With nothing in front of it, its receipt is due at once.
        self.forge(send.producer_id, back);
        Some(format!(
            "dropped SEND {}: sequence id {} of producer {}, and forged its receipt",
            faults.sends, send.sequence_id, send.producer_id
        ))
    }

    fn message(
        &mut self,
        frame: RawFrame<'_>,
        faults: &mut Faults,
        out: &mut BytesMut,
    ) -> Option<String> {
        faults.messages += 1;
        let (args, count) = (faults.args, faults.messages);
        let what = || {
            let place = Delivery::parse(frame.command)
                .map(|delivery| {
                    format!(
                        ", entry {}:{} to consumer {}",
                        delivery.ledger, delivery.entry, delivery.consumer_id
                    )
                })
                .unwrap_or_default();
            format!("MESSAGE {count}{place}")
        };
        if faults.due(args.drop, count) {
            return Some(format!("dropped {}", what()));
        }
        if faults.due(args.reorder, count) && self.held.is_none() {
            // Without a key nothing of the same key can follow.
            if let Some(key) = key(frame.rest) {
                let mut whole = BytesMut::new();
                append(frame, &mut whole);
                self.held = Some(Held {
                    frame: whole.to_vec(),
                    key,
                });
                return Some(format!("held {} until the next of its key", what()));
            }
        }
        let start = out.len();
        append(frame, out);
        if faults.due(args.flip, count) {
            let entry = out.len() - frame.rest.len();
            let altered = out
                .get_mut(entry..)
                .and_then(|entry| flip(entry, args.flip_byte, args.recompute_checksum));
            return altered.map(|()| format!("altered {}", what()));
        }
        if faults.due(args.duplicate, count) {
            append(frame, out);
            return Some(format!("repeated {}", what()));
        }
        if let Some(held) = &self.held
            && out.len() > start
            && key(frame.rest).as_ref() == Some(&held.key)
        {
            out.extend_from_slice(&held.frame);
            self.held = None;
            return Some(format!("released what was held, behind {}", what()));
        }
        None
    }

    /// A real receipt has come: everything up to it is answered.
    fn answered(&mut self, receipt: &Receipt) {
        if let Some(position) = receipt.position {
            self.positions.insert(receipt.producer_id, position);
        }
        if let Some(queue) = self.unanswered.get_mut(&receipt.producer_id) {
            while let Some(&(sequence, false)) = queue.front() {
                queue.pop_front();
                if sequence == receipt.sequence_id {
                    break;
                }
            }
        }
    }

    /// Writes receipts for the swallowed SENDs that are next to be answered, at the positions behind the last real one.
    fn forge(&mut self, producer_id: u64, out: &mut BytesMut) {
        let Some(queue) = self.unanswered.get_mut(&producer_id) else {
            return;
        };
        let (ledger, entry) = self.positions.entry(producer_id).or_default();
        while let Some(&(sequence, true)) = queue.front() {
            queue.pop_front();
            *entry += 1;
            encode::send_receipt(out, producer_id, sequence, u64::MAX, *ledger, *entry);
        }
    }
}

/// Appends a frame as it came.
pub(crate) fn append(frame: RawFrame<'_>, out: &mut BytesMut) {
    let (command, rest) = (frame.command.len(), frame.rest.len());
    out.extend_from_slice(&((4 + command + rest) as u32).to_be_bytes());
    out.extend_from_slice(&(command as u32).to_be_bytes());
    out.extend_from_slice(frame.command);
    out.extend_from_slice(frame.rest);
}

/// Key of an entry: its ordering key, or else its partition key.
fn key(entry: &[u8]) -> Option<Vec<u8>> {
    let metadata = Entry::parse(entry).ok()?.decode_metadata().ok()?;
    metadata
        .ordering_key
        .map(Into::into)
        .or_else(|| metadata.partition_key.map(Into::into))
}

/// Inverts a byte of the payload; `None` if there is none.
fn flip(bytes: &mut [u8], from_end: usize, recompute: bool) -> Option<()> {
    let (payload, stored, has_checksum) = {
        let entry = Entry::parse(bytes).ok()?;
        (
            entry.payload.len(),
            entry.without_broker_metadata().len(),
            entry.checksum.is_some(),
        )
    };
    if from_end >= payload {
        return None;
    }
    let len = bytes.len();
    *bytes.get_mut(len - 1 - from_end)? ^= 0xff;
    if recompute && has_checksum {
        // Magic and checksum are the first six bytes of what was stored; the checksum covers everything behind them.
        let (head, covered) = bytes.get_mut(len - stored..)?.split_at_mut_checked(6)?;
        head.get_mut(2..)?
            .copy_from_slice(&crc32c(covered).to_be_bytes());
    }
    Some(())
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
