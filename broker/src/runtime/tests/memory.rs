//! Memory against every other reason to wait, on real sockets, decoders and cores. The engine does what it is told:
//! frames name the holds they cause, and the test says when holds end and when frames that the engine keeps (as a
//! broker keeps a publish on its way to another core) are let go of.

use super::echo::*;
use super::network::eventually;
use crate::runtime::memory::Intake;
use crate::runtime::port::*;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vela_codec::Frame;
use vela_limiter::{HoldCounts, Mode, Reason, Throttle};

/// The engine keeps the frame; the second command byte is the reason that it holds the connection for, or `NONE`.
const KEEP: u8 = b'k';
/// Like it, and holds twice.
const TWICE: u8 = b't';
/// The frame is forgotten, and the connection closed.
const END: u8 = b'e';
/// Nothing passes the frame.
const HIDE: u8 = b'h';
const NONE: u8 = 99;

/// Large enough that two of them fill the receive buffer's first size and are not worth copying out of it.
const A: usize = 7_900;
const B: usize = 8_250;
const ROOT: u64 = 16_384;

#[derive(Default)]
struct Script {
    /// First bytes of the payloads of delivered frames.
    delivered: Vec<u8>,
    kept: VecDeque<Frame>,
    releases: Vec<Reason>,
    close: bool,
    /// Whoever a rate alone holds is read ahead.
    ahead: bool,
    /// Bytes that wait, and excuses, by connection.
    queued: BTreeMap<u32, usize>,
    excused: BTreeMap<u32, u64>,
}

struct Told {
    script: Arc<Mutex<Script>>,
    peers: Vec<Option<Throttle>>,
    counts: HoldCounts,
    network: NetworkEffects<()>,
    out: Out,
}

impl CoreEngine for Told {
    type Message = ();
    type Out = Out;

    fn accept(&mut self, _: SocketAddr, _: SocketAddr, _: Now) -> ConnId {
        self.peers.push(Some(Throttle::new()));
        ConnId {
            slot: self.peers.len() as u32 - 1,
            generation: 1,
        }
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn wants_frames(&mut self, conn: ConnId) -> bool {
        self.peers[conn.slot as usize]
            .as_ref()
            .is_some_and(Throttle::may_deliver)
    }

    fn read_rule(&mut self, conn: ConnId) -> ReadRule {
        match &self.peers[conn.slot as usize] {
            Some(throttle) if throttle.may_read() => ReadRule::Read,
            Some(throttle) if throttle.only_rate() && self.script.lock().unwrap().ahead => {
                ReadRule::Ahead
            }
            _ => ReadRule::Stop,
        }
    }

    fn passing(&mut self, conn: ConnId, frames: &VecDeque<Frame>) -> Option<usize> {
        let bytes = frames.iter().map(Frame::len).sum();
        self.script.lock().unwrap().queued.insert(conn.slot, bytes);
        None
    }

    fn may_hide_life(&self, frames: &VecDeque<Frame>) -> bool {
        frames.iter().any(|frame| frame.command()[0] == HIDE)
    }

    fn excused(&mut self, conn: ConnId, _: Now) {
        *self
            .script
            .lock()
            .unwrap()
            .excused
            .entry(conn.slot)
            .or_default() += 1;
    }

    fn frame(&mut self, conn: ConnId, frame: Frame, _: Now) {
        assert!(self.wants_frames(conn), "frame that is not wanted");
        let mut script = self.script.lock().unwrap();
        script.delivered.push(frame.rest()[0]);
        let (kind, reason) = (frame.command()[0], usize::from(frame.command()[1]));
        let throttle = self.peers[conn.slot as usize].as_mut().unwrap();
        if let Some(reason) = Reason::ALL.get(reason) {
            throttle.hold(*reason, &mut self.counts);
            if kind == TWICE {
                throttle.hold(*reason, &mut self.counts);
            }
        }
        if kind == END {
            self.network.close.push(conn);
        } else {
            script.kept.push_back(frame);
        }
    }

    fn closed(&mut self, conn: ConnId, _: Now) {
        assert!(self.peers[conn.slot as usize].take().is_some());
    }

    fn output(&mut self, _: ConnId) -> Option<&mut Out> {
        Some(&mut self.out)
    }

    fn sent(&mut self, _: ConnId, _: Now) {}
    fn mail(&mut self, _: CoreId, _: Vec<()>, _: Now) {}
    fn tick(&mut self, _: Now) {}

    fn next_wakeup(&self) -> Option<u64> {
        None
    }

    fn end_of_turn(&mut self, _: Now) -> bool {
        let mut script = self.script.lock().unwrap();
        let ids = |slot: usize| ConnId {
            slot: slot as u32,
            generation: 1,
        };
        for reason in std::mem::take(&mut script.releases) {
            // The first connection is the one that is held.
            let throttle = self.peers[0].as_mut().unwrap();
            if throttle.release(reason, &mut self.counts).delivery_free {
                self.network.resumed.push(ids(0));
            }
        }
        if std::mem::take(&mut script.close) {
            self.network.close.push(ids(0));
        }
        false
    }

    fn shutdown(&mut self, _: Now) {}
    fn checkpoint(&mut self, _: Now) {}

    fn is_quiet(&self) -> bool {
        true
    }

    fn take_network(&mut self, into: &mut NetworkEffects<()>) {
        into.resumed.append(&mut self.network.resumed);
        into.close.append(&mut self.network.close);
        into.mail.resize_with(1, Vec::new);
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

struct Stage {
    server: Running<()>,
    script: Arc<Mutex<Script>>,
}

impl Stage {
    fn with(intake: Arc<Intake>) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let shared = Arc::clone(&script);
        let server = Running::of(1, 0, intake, move |_| {
            let engine = Told {
                script: Arc::clone(&shared),
                peers: Vec::new(),
                counts: HoldCounts::default(),
                network: NetworkEffects::default(),
                out: Out::default(),
            };
            (engine, NoStorage)
        });
        Self { server, script }
    }

    /// Half of the receive buffer is more than the limit allows.
    fn tight() -> Self {
        Self::with(Server::intake(Mode::Enabled, 10_000, 30_000))
    }

    fn delivered(&self) -> Vec<u8> {
        self.script.lock().unwrap().delivered.clone()
    }

    fn delivers(&self, frames: &[u8]) {
        let deadline = Instant::now() + LIMIT;
        while self.delivered() != frames {
            let came = self.delivered();
            assert!(Instant::now() < deadline, "{came:?}, not {frames:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // And no more.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(self.delivered(), frames);
    }

    fn release(&self, reason: Reason) {
        self.script.lock().unwrap().releases.push(reason);
        self.server.cluster.post.wake(0);
    }

    /// The engine lets go of the oldest frames that it keeps, on this thread.
    fn let_go(&self, frames: usize) {
        for _ in 0..frames {
            let frame = self.script.lock().unwrap().kept.pop_front();
            drop(frame.expect("a kept frame"));
        }
    }

    fn throttled(&self) -> bool {
        self.server.intake.limiter.is_throttled()
    }

    fn ends_empty(self, client: Client) {
        drop(client);
        let kept = self.script.lock().unwrap().kept.len();
        self.let_go(kept);
        eventually("no memory is held", || self.server.retained() == 0);
        // The limiter's state follows its count.
        eventually("reads are free", || !self.throttled());
        self.server.stop();
    }
}

fn frame(kind: u8, reason: u8, name: u8, size: usize) -> Vec<u8> {
    let mut rest = vec![0; size - 10];
    rest[0] = name;
    encode(&[kind, reason], &rest).to_vec()
}

/// Every reason but memory.
fn reasons() -> impl Iterator<Item = (u8, Reason)> {
    (0..)
        .zip(Reason::ALL)
        .filter(|(_, reason)| *reason != Reason::Memory)
}

#[test]
fn two_frames_of_one_root_go_on_whatever_holds_them_and_whatever_clears_first() {
    for (number, reason) in reasons() {
        for memory_first in [false, true] {
            let stage = Stage::tight();
            let mut client = stage.server.connect();
            let both = [frame(KEEP, number, b'a', A), frame(KEEP, NONE, b'b', B)].concat();
            client.0.write_all(&both).unwrap();
            stage.delivers(b"a");
            assert!(stage.throttled(), "{reason:?}");
            assert_eq!(stage.server.retained(), ROOT, "one root for both");
            client.0.write_all(&frame(KEEP, NONE, b'c', A)).unwrap();
            if memory_first {
                // What would clear memory cannot: the frame that waits keeps the root.
                stage.let_go(1);
                stage.delivers(b"a");
                assert!(stage.throttled() && stage.server.retained() == ROOT);
                stage.release(reason);
                stage.delivers(b"ab");
                assert!(stage.throttled(), "drained, and not read on");
                stage.let_go(1);
            } else {
                stage.release(reason);
                stage.delivers(b"ab");
                assert!(stage.throttled(), "drained, and not read on");
                stage.let_go(1);
                stage.delivers(b"ab");
                assert!(stage.throttled());
                stage.let_go(1);
            }
            stage.delivers(b"abc");
            stage.ends_empty(client);
        }
    }
}

#[test]
fn a_hold_in_the_middle_of_a_drain_stops_it_there() {
    for (number, reason) in reasons() {
        let stage = Stage::tight();
        let mut client = stage.server.connect();
        let all = [
            frame(KEEP, number, b'a', 5_000),
            frame(KEEP, number, b'b', 5_000),
            frame(KEEP, NONE, b'c', 5_000),
        ];
        client.0.write_all(&all.concat()).unwrap();
        stage.delivers(b"a");
        stage.release(reason);
        stage.delivers(b"ab");
        assert!(stage.throttled());
        stage.release(reason);
        stage.delivers(b"abc");
        stage.ends_empty(client);
    }
}

#[test]
fn a_late_release_of_an_old_hold_leaves_the_newer_one() {
    for (number, reason) in reasons() {
        let stage = Stage::tight();
        let mut client = stage.server.connect();
        let both = [frame(TWICE, number, b'a', A), frame(KEEP, NONE, b'b', B)];
        client.0.write_all(&both.concat()).unwrap();
        stage.delivers(b"a");
        stage.release(reason);
        stage.delivers(b"a");
        stage.release(reason);
        stage.delivers(b"ab");
        stage.ends_empty(client);
    }
}

#[test]
fn an_unfinished_frame_is_read_to_its_end_and_no_further() {
    let stage = Stage::tight();
    let mut first = stage.server.connect();
    let mut second = stage.server.connect();
    // Of the second's frame less than the limit is there when the first one's fills it.
    let unfinished = frame(KEEP, NONE, b'u', 200_000);
    second.0.write_all(&unfinished[..2_000]).unwrap();
    eventually("the part is there", || stage.server.retained() >= 2_000);
    let both = [frame(KEEP, NONE, b'a', A), frame(KEEP, NONE, b'b', B)];
    first.0.write_all(&both.concat()).unwrap();
    stage.delivers(b"ab");
    assert!(stage.throttled());
    second.0.write_all(&unfinished[2_000..]).unwrap();
    second.0.write_all(&frame(KEEP, NONE, b'v', A)).unwrap();
    stage.delivers(b"abu");
    assert!(stage.throttled());
    stage.let_go(3);
    stage.delivers(b"abuv");
    drop(first);
    stage.ends_empty(second);
}

#[test]
fn a_connection_that_ends_with_frames_waiting_keeps_none_of_them() {
    let (number, reason) = reasons().next().unwrap();
    for by_broker in [true, false] {
        let stage = Stage::tight();
        let mut client = stage.server.connect();
        let both = [frame(KEEP, number, b'a', A), frame(KEEP, NONE, b'b', B)];
        client.0.write_all(&both.concat()).unwrap();
        stage.delivers(b"a");
        stage.let_go(1);
        assert_eq!(stage.server.retained(), ROOT);
        if by_broker {
            stage.script.lock().unwrap().close = true;
            stage.server.cluster.post.wake(0);
        } else {
            // Nobody reads that it has gone; what it sent before is still wanted.
            client.0.shutdown(std::net::Shutdown::Both).unwrap();
            stage.release(reason);
            stage.delivers(b"ab");
            stage.let_go(1);
        }
        eventually("no memory is held", || stage.server.retained() == 0);
        stage.ends_empty(client);
    }
}

#[test]
fn a_peer_that_leaves_while_it_is_held_is_noticed_whatever_holds_it() {
    for (number, reason) in reasons() {
        let stage = Stage::tight();
        let mut client = stage.server.connect();
        let both = [frame(KEEP, number, b'a', A), frame(KEEP, NONE, b'b', B)];
        client.0.write_all(&both.concat()).unwrap();
        stage.delivers(b"a");
        // More than is read, so that no read finds the end.
        client.0.write_all(&frame(KEEP, NONE, b'c', A)).unwrap();
        drop(client);
        eventually("it is gone", || stage.server.connections() == 0);
        assert_eq!(stage.delivered(), b"a", "{reason:?}");
        let kept = stage.script.lock().unwrap().kept.len();
        stage.let_go(kept);
        eventually("no memory is held", || stage.server.retained() == 0);
        stage.server.stop();
    }
}

/// A rate excuses the silence of a peer whose sign of life may have come unseen, and not that of one of which all has been read.
#[test]
fn silence_is_excused_where_a_sign_of_life_may_wait_unseen() {
    let (rate, _) = reasons().find(|(_, r)| *r == Reason::TopicRate).unwrap();
    let stage = Stage::with(Server::intake(Mode::Tracking, 0, 30_000));
    stage.script.lock().unwrap().ahead = true;
    let mut clients: Vec<Client> = (0..5).map(|_| stage.server.connect()).collect();
    for client in &mut clients {
        client.0.write_all(&frame(KEEP, rate, b'a', 100)).unwrap();
    }
    eventually("all are held", || stage.delivered() == [b'a'; 5]);
    let queued = |slot: u32| stage.script.lock().unwrap().queued.get(&slot).copied();
    let excused = |slot: u32| {
        stage
            .script
            .lock()
            .unwrap()
            .excused
            .get(&slot)
            .copied()
            .unwrap_or(0)
    };
    let [_, waiting, hiding, unfinished, full] = &mut clients[..] else {
        panic!("five clients");
    };
    waiting.0.write_all(&frame(KEEP, NONE, b'b', 100)).unwrap();
    hiding.0.write_all(&frame(HIDE, NONE, b'b', 100)).unwrap();
    unfinished
        .0
        .write_all(&frame(KEEP, NONE, b'b', 100)[..50])
        .unwrap();
    // As much as is read ahead, and nothing else.
    full.0.write_all(&frame(KEEP, NONE, b'b', 70_000)).unwrap();
    eventually("they wait", || {
        (1..3).all(|slot| queued(slot) > Some(0)) && queued(4) > Some(65_536)
    });
    let before = excused(4);
    full.0.write_all(&frame(KEEP, NONE, b'c', 100)).unwrap();
    eventually("they are excused", || {
        excused(2) > 2 && excused(3) > 2 && excused(4) > before + 2
    });
    assert_eq!((excused(0), excused(1)), (0, 0), "looked at as often");
    let first = clients.remove(0);
    drop(clients);
    stage.ends_empty(first);
}

#[test]
fn a_change_of_mode_or_limit_is_felt_at_once() {
    type Change = fn(&Intake);
    let changes: [Change; 4] = [
        |intake| intake.limiter.set_mode(Mode::Tracking),
        |intake| intake.limiter.set_mode(Mode::Disabled),
        |intake| intake.limiter.set_limit(1 << 20),
        |intake| intake.limiter.set_limit(0),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let stage = Stage::tight();
        let mut client = stage.server.connect();
        let both = [frame(KEEP, NONE, b'a', A), frame(KEEP, NONE, b'b', B)];
        client.0.write_all(&both.concat()).unwrap();
        stage.delivers(b"ab");
        client.0.write_all(&frame(KEEP, NONE, b'c', A)).unwrap();
        stage.delivers(b"ab");
        change(&stage.server.intake);
        stage.delivers(b"abc");
        if index == 1 {
            assert_eq!(stage.server.retained(), ROOT, "new roots are not counted");
        }
        // And back: the frames that the engine keeps are too much again.
        stage.server.intake.limiter.set_limit(10_000);
        stage.server.intake.limiter.set_mode(Mode::Enabled);
        assert!(stage.throttled());
        client.0.write_all(&frame(KEEP, NONE, b'd', A)).unwrap();
        stage.delivers(b"abc");
        stage.let_go(3);
        stage.delivers(b"abcd");
        stage.ends_empty(client);
    }
}

#[test]
fn a_frame_that_stands_still_ends_its_connection_and_only_that() {
    let timeout = Duration::from_millis(1000);
    // A machine that stops this test in the middle makes a slow client of ours stand still: then it is played again.
    for _ in 0..20 {
        let millis = timeout.as_millis() as u64;
        let server = Server::with(1, 500, Server::intake(Mode::Auto, 64 << 20, millis));
        let mut good = server.connect();
        let mut standing = server.connect();
        standing
            .0
            .write_all(&[0, 0x50, 0, 0, 0, 0, 0, 2, b'e'])
            .unwrap();
        let mut slow = server.connect();
        let whole = encode(&[ECHO, 0], &[1; 20]);
        let mut longest = Duration::ZERO;
        for byte in &whole {
            let before = Instant::now();
            // Refused if it stood still for too long.
            let _ = slow.0.write_all(&[*byte]);
            std::thread::sleep(Duration::from_millis(50));
            good.call(ECHO, b"here");
            longest = longest.max(before.elapsed());
        }
        assert_eq!(standing.0.read(&mut [0]).unwrap_or(0), 0, "closed");
        // The broker sees a byte up to a heartbeat late.
        if longest < timeout / 2 {
            // Slower than the time that a frame may stand still, yet never standing still.
            assert_eq!(slow.receive().1, [1; 20]);
            assert_eq!(server.intake.closed(), (1, 0));
            server.stop();
            return;
        }
        server.stop();
    }
    panic!("the machine never let this test run for two seconds");
}

#[test]
fn a_stalled_frame_makes_room_for_one_that_comes() {
    // The pool is as large as one frame of the largest size.
    let server = Server::with(1, 500, Server::intake(Mode::Auto, 12 << 20, 30_000));
    let body = vec![3; 5 << 20];
    let whole = encode(&[ECHO, 0], &body);
    let mut stalled = server.connect();
    stalled.0.write_all(&whole[..1 << 20]).unwrap();
    eventually("it is read", || server.retained() >= 1 << 20);
    let mut honest = server.connect();
    let mut small = server.connect();
    let writer = {
        let mut stream = honest.0.try_clone().unwrap();
        std::thread::spawn(move || stream.write_all(&whole))
    };
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        small.call(ECHO, &[9; 60_000]);
    }
    let (closed, retained) = (server.intake.closed(), server.retained());
    // Seen in time, or not at all on a machine that stopped this test.
    if start.elapsed() < Duration::from_millis(1500) {
        assert_eq!(closed, (0, 0), "there is patience");
        assert!(retained < 3 << 20, "one frame has the room");
    }
    assert!(honest.receive().1 == body);
    writer.join().unwrap().unwrap();
    assert_eq!(server.intake.closed(), (0, 1));
    assert_eq!(stalled.0.read(&mut [0]).unwrap_or(0), 0, "closed");
    eventually("no memory is held", || server.retained() == 0);
    server.stop();
}
