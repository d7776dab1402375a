//! Publishes the same frames again and again through the receive buffer, the decoder, the engine and a log in memory, on one core and
//! without sockets, so that its instructions can be counted: `scripts/count-instructions`.
//!
//! `publish_path MODE INPUT COUNT`: MODE as `inProgressRequestFrameMemoryLimitEnabled` takes it; INPUT `single` (1 KiB messages, one
//! per read), `full` (1 KiB messages, reads that fill the buffer), `split` (1 KiB messages, reads of 5,000 bytes, so that each ends
//! inside a frame) or `large` (256 KiB messages).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../tests/harness/mod.rs"]
mod harness;

use bytes::{Bytes, BytesMut};
use harness::client::say;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use vela_broker::engine::{
    ConnId, Engine, EngineConfig, Metadata, Now, ReadRule, ServiceAddress, Settings,
};
use vela_broker::store::log::{Lane, LaneConfig, LaneState};
use vela_broker::store::memory::{MemoryOptions, MemoryWal};
use vela_broker::store::wal::{Wal, WalEvent};
use vela_codec::{Accounting, Cumulation, FrameDecoder, IN_PLACE_MIN, Sizes};
use vela_limiter::{BufferMemory, MemoryLimiter, Mode, over_share};

/// Bytes of receive memory that may be retained: what is published here stays far below.
const LIMIT: i64 = 256 << 20;

/// As the runtime counts roots.
struct Counted(Arc<MemoryLimiter>);

impl Accounting for Counted {
    fn allocated(&self, bytes: usize) {
        self.0.allocated(bytes);
    }

    fn released(&self, bytes: usize) {
        self.0.released(bytes);
    }
}

struct Driver {
    engine: Engine,
    wal: MemoryWal,
    conn: ConnId,
    limiter: Arc<MemoryLimiter>,
    accounting: Option<Arc<dyn Accounting>>,
    cumulation: Cumulation,
    decoder: FrameDecoder,
    now: Now,
    /// Bytes that one read brings at most.
    read_max: usize,
    /// Bytes sent to the client.
    sent: usize,
    events: Vec<WalEvent>,
}

impl Driver {
    fn new(mode: Mode, read_max: usize) -> Self {
        let memory = Arc::new(BufferMemory::new(2 * LIMIT as u64));
        let limiter = Arc::new(MemoryLimiter::new(mode, LIMIT, memory));
        let accounting = limiter
            .counts()
            .then(|| Arc::new(Counted(Arc::clone(&limiter))) as Arc<dyn Accounting>);
        let wal = MemoryWal::new(0, 1, MemoryOptions::default(), None);
        let lane = LaneConfig::default();
        let mut metadata = Metadata::default();
        metadata.apply("namespace/public/default", Some(&Bytes::from_static(b"{}")));
        let config = EngineConfig {
            core: 0,
            cores: 1,
            shards: 1,
            settings: Arc::new(Settings::default()),
            service: ServiceAddress {
                advertised: None,
                port: 6650,
                core_ports: Vec::new(),
            },
            log_budget: lane.budget_bytes,
            rates: Arc::new(vela_broker::runtime::RateTable::default()),
        };
        let lanes = vec![(
            0,
            Lane::new(0, 1, wal.next_seq(), lane),
            LaneState::default(),
        )];
        let mut engine = Engine::new(config, lanes, metadata);
        let now = Now {
            ms: 1_000,
            wall_ms: 1_700_000_000_000,
        };
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let conn = engine.accept(peer, SocketAddr::from(([127, 0, 0, 1], 6650)), now);
        Self {
            decoder: FrameDecoder::new(engine.max_frame()),
            cumulation: Cumulation::new(Sizes::default(), accounting.clone()),
            engine,
            wal,
            conn,
            limiter,
            accounting,
            now,
            sent: 0,
            read_max,
            events: Vec::new(),
        }
    }

    /// Receives all of `bytes`, in reads as large as there is room for, each with a turn of the core behind it.
    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.read(bytes);
            bytes = &bytes[n..];
            self.hand_on();
            self.turn();
        }
    }

    /// One read, by the rules of the runtime.
    fn read(&mut self, bytes: &[u8]) -> usize {
        assert_eq!(self.engine.read_rule(self.conn), ReadRule::Read);
        assert!(self.engine.wants_frames(self.conn));
        let tight = self.limiter.is_throttled()
            || self.limiter.is_crowded()
                && over_share(self.decoder.retained() as u64, 1, LIMIT, true);
        assert!(!tight, "nothing here may come near the limit");
        let in_place = self
            .decoder
            .missing()
            .is_some_and(|missing| missing >= IN_PLACE_MIN);
        let space = match in_place {
            true => self.decoder.missing_space(1).unwrap(),
            false => self.cumulation.space(),
        };
        let n = space.len().min(bytes.len()).min(self.read_max);
        space[..n].copy_from_slice(&bytes[..n]);
        match in_place {
            true => self.decoder.advance(n),
            false => self.decoder.push(self.cumulation.read(n)),
        }
        n
    }

    fn hand_on(&mut self) {
        while self.engine.wants_frames(self.conn) {
            match self.decoder.next_frame().unwrap() {
                Some(frame) => self.engine.frame(self.conn, frame, self.now),
                None => break,
            }
        }
        self.decoder.settle(self.accounting.as_ref());
    }

    /// Ends turns until nothing is left to be done: what is to be written is durable at once, and what is to be sent is gone.
    fn turn(&mut self) {
        loop {
            let more = self.engine.end_of_turn(self.now);
            let effects = std::mem::take(self.engine.effects());
            self.engine.effects().mail = vec![Vec::new()];
            assert!(effects.close.is_empty(), "the engine gave the client up");
            let mut busy = more;
            for (_, chunk) in effects.writes {
                self.wal.submit(chunk).unwrap();
                self.wal.complete_one();
                busy = true;
            }
            for (_, seq, bytes) in effects.checkpoints {
                self.wal.put_checkpoint(seq, seq, bytes).unwrap();
                self.wal.complete_checkpoint();
                busy = true;
            }
            for request in effects.metadata {
                let value = request.value.as_ref();
                self.engine.metadata_changed(&request.key, value);
                self.engine.metadata_done(request.token, Ok(true), self.now);
                busy = true;
            }
            let mut events = std::mem::take(&mut self.events);
            self.wal.poll(&mut events);
            for event in events.drain(..) {
                match event {
                    WalEvent::Durable { upto } => self.engine.durable(0, upto, self.now),
                    WalEvent::Checkpoint { token, result } => {
                        result.unwrap();
                        let segments = self.wal.segments();
                        self.engine.checkpoint_done(0, token, &segments, self.now);
                    }
                    WalEvent::Failed { error } => panic!("the log failed: {error}"),
                    _ => {}
                }
                busy = true;
            }
            self.events = events;
            self.send();
            if !busy {
                return;
            }
        }
    }

    fn send(&mut self) {
        let before = self.sent;
        while let Some(out) = self.engine.output(self.conn) {
            let mut slices = [IoSlice::new(&[]); 16];
            let used = out.io_slices(&mut slices);
            let n = slices[..used].iter().map(|slice| slice.len()).sum();
            if n == 0 {
                break;
            }
            out.consume(n);
            self.sent += n;
        }
        if self.sent > before {
            self.engine.sent(self.conn, self.now);
        }
    }
}

/// What is counted: `per_call` frames at a time, `calls` times.
#[inline(never)]
fn publish_all(driver: &mut Driver, frames: &[u8], calls: usize) {
    for _ in 0..calls {
        driver.receive(frames);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, input, count] = arguments.as_slice() else {
        panic!("usage: publish_path disabled|tracking|auto|enabled single|full|split|large COUNT");
    };
    let mode: Mode = mode.parse().unwrap();
    let count: usize = count.parse().unwrap();
    let (size, per_call, read_max) = match input.as_str() {
        "single" => (1024, 1, usize::MAX),
        "full" => (1024, 1000, usize::MAX),
        "split" => (1024, 1000, 5000),
        "large" => (256 * 1024, 1, usize::MAX),
        other => panic!("no input is called {other}: use single, full, split or large"),
    };
    assert!(
        count.is_multiple_of(per_call),
        "COUNT is a multiple of {per_call} for {input}"
    );

    let mut driver = Driver::new(mode, read_max);
    let topic = "persistent://public/default/counted";
    driver.receive(&say::bytes(&say::connect()));
    driver.receive(&say::bytes(&say::producer(topic, 1, 1, Some("p"))));
    let mut frames = BytesMut::new();
    for _ in 0..per_call {
        frames.extend_from_slice(&say::send(1, 7, None, 1_700_000_000_000, &vec![b'x'; size]));
    }
    // What grows and settles once is not the cost of a message.
    publish_all_warm(
        &mut driver,
        &frames,
        2000usize.div_ceil(per_call).min(count / per_call),
    );
    let before = driver.engine.stats().counters.messages_in;
    let (sent, retained) = (driver.sent, driver.limiter.retained());
    publish_all(&mut driver, &frames, count / per_call);

    let published = driver.engine.stats().counters.messages_in - before;
    assert_eq!(published, count as u64, "every message is published");
    assert!(driver.sent > sent, "and has its receipt");
    let counted = driver.limiter.retained();
    driver.cumulation.release_idle();
    let left = driver.limiter.retained();
    println!(
        "mode={} input={input} messages={published} receipt_bytes={} retained_before={retained} retained_after={counted} idle={left} {:?}",
        mode.name(),
        driver.sent - sent,
        driver.limiter.transitions(),
    );
    assert_eq!(left, 0, "all receive memory is given back");
}

/// The same, under a name that is not counted.
#[inline(never)]
fn publish_all_warm(driver: &mut Driver, frames: &[u8], calls: usize) {
    for _ in 0..calls {
        driver.receive(frames);
    }
}
