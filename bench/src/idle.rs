//! Many connections that do nothing: what each costs the broker in memory.

use serde::Serialize;
use vela_codec::encode;
use vela_proto::base_command::Type;

use crate::args::IdleArgs;
use crate::connection::{Address, Connection, connect};
use crate::error::{Context as _, Result};
use crate::measure::{self, monotonic_ns, ns};
use crate::net::Net;
use crate::report::{Report, Table, grouped, mebibytes};

/// Connections whose handshakes are under way at a time; within the backlog of any listening socket.
const AT_A_TIME: usize = 100;
/// An idle connection receives keep-alive only, in bytes.
const INPUT: usize = 256;

/// The result.
#[derive(Debug, Clone, Serialize)]
struct IdleReport {
    kind: &'static str,
    valid: bool,
    fault: Option<String>,
    connections: usize,
    connect_seconds: f64,
    hold_seconds: f64,
    /// Connections that ended while held.
    closed: usize,
    pings: u64,
    rss: Option<IdleRss>,
}

/// Memory of the broker, in bytes.
#[derive(Debug, Clone, Serialize)]
struct IdleRss {
    before: u64,
    connected: u64,
    held: u64,
    /// Of what was added when held.
    per_connection: f64,
}

impl Report for IdleReport {
    fn rows(&self, table: &mut Table) {
        table.verdict(self.fault.as_deref());
        table.row("connections", grouped(self.connections as f64));
        table.row("connected in", format!("{:.2} s", self.connect_seconds));
        table.row(
            "held",
            format!("{} s, {} PINGs answered", self.hold_seconds, self.pings),
        );
        if let Some(rss) = &self.rss {
            table.row("broker RSS before", mebibytes(rss.before));
            table.row("broker RSS connected", mebibytes(rss.connected));
            table.row("broker RSS held", mebibytes(rss.held));
            table.row(
                "per connection",
                format!("{} B", grouped(rss.per_connection)),
            );
        }
    }
}

/// Opens, holds and measures; answers whether all connections stayed.
pub(crate) fn run(args: &IdleArgs) -> Result<bool> {
    measure::pin_to(args.target.cpu.as_ref())?;
    let wanted = args.connections as usize;
    measure::raise_open_files(wanted as u64 + 64)?;
    let address = Address::resolve(&args.target.url)?;
    let pid = args.target.broker_pid;
    let rss = || pid.map(measure::rss).transpose();

    let before = rss()?;
    let start = monotonic_ns();
    let mut net = Net::new()?;
    let mut opened = 0;
    while opened < wanted {
        let mut batch = Vec::with_capacity(AT_A_TIME);
        for _ in 0..AT_A_TIME.min(wanted - opened) {
            let doing = || format!("connection {} of {wanted}", opened + batch.len() + 1);
            let mut connection = Connection::dial(&address, INPUT).context(doing)?;
            connection.send(&connect(None)).context(doing)?;
            batch.push(connection);
        }
        for mut connection in batch {
            opened += 1;
            connection.await_connected().context(|| {
                format!(
                    "connection {opened} of {wanted} (the broker needs as many open files, too)"
                )
            })?;
            net.add(connection)?;
        }
    }
    let connect_seconds = (monotonic_ns() - start) as f64 / 1e9;
    let connected = rss()?;

    let until = monotonic_ns() + ns(args.hold);
    let mut pings = 0;
    while monotonic_ns() < until {
        let left = until.saturating_sub(monotonic_ns()).min(1_000_000_000);
        net.poll(left, |_, frame, out, _| {
            if frame.type_is(Type::Ping) {
                encode::pong(out);
                pings += 1;
            }
            Ok(())
        })?;
        net.flush();
    }
    let held = rss()?;
    let closed = net.closed.len();
    let fault = net
        .closed
        .first()
        .map(|(index, reason)| format!("{closed} connections ended; connection {index}: {reason}"));
    let report = IdleReport {
        kind: "idle",
        valid: fault.is_none(),
        fault,
        connections: opened,
        connect_seconds,
        hold_seconds: args.hold,
        closed,
        pings,
        rss: match (before, connected, held) {
            (Some(before), Some(connected), Some(held)) => Some(IdleRss {
                before,
                connected,
                held,
                per_connection: (held as f64 - before as f64) / opened.max(1) as f64,
            }),
            _ => None,
        },
    };
    report.print(args.target.json)?;
    Ok(report.valid)
}
