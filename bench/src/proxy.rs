//! A proxy between load and broker that makes the faults a verifier must notice: without it, nobody knows that a valid run could
//! have been an invalid one.
//!
//! It reads and writes whole frames, with two threads per connection; answers of lookups name the proxy instead of the broker. It is no
//! part of a measurement.

mod fault;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::BytesMut;
use clap::Args;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;

use self::fault::{FaultArgs, Faults, Link};
use crate::connection::Address;
use crate::error::{Context as _, Result};
use crate::net::READ_SIZE;
use crate::sink;
use crate::wire::{Input, RawFrame};

/// Faults told of; later ones are only made.
const TOLD_MAX: u64 = 1000;

#[derive(Debug, Clone, Args)]
pub(crate) struct ProxyArgs {
    /// Broker to pass everything on to
    #[arg(long, default_value = "pulsar://127.0.0.1:6650", value_name = "URL")]
    to: String,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
    #[command(flatten)]
    faults: FaultArgs,
}

/// What all connections share.
struct Shared {
    url: String,
    faults: Mutex<Faults>,
    told: Mutex<u64>,
}

impl Shared {
    fn tell(&self, done: Option<String>) {
        if let Some(done) = done {
            let mut told = lock(&self.told);
            *told += 1;
            if *told <= TOLD_MAX {
                println!("proxy: {done}");
            }
        }
    }
}

/// One connection of a client, and the one to the broker that belongs to it.
struct Pair {
    client: TcpStream,
    broker: TcpStream,
    /// Held while writing to the client, so that frames of both directions stay whole.
    link: Mutex<Link>,
}

impl Pair {
    /// What ends one direction ends the other.
    fn end(&self, result: Result<()>) {
        if let Err(failure) = result {
            eprintln!("proxy: {failure}");
        }
        for socket in [&self.client, &self.broker] {
            // Already closed is as good.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn broker_to_client(&self, shared: &Shared) -> Result<()> {
        pass(&self.broker, |frames| {
            let mut out = BytesMut::new();
            let mut link = lock(&self.link);
            while let Some(frame) = frames.next()? {
                if frame.type_is(Type::LookupResponse) {
                    redirect(frame, &shared.url, &mut out)?;
                    continue;
                }
                let done = link.relay_to_client(frame, &mut lock(&shared.faults), &mut out);
                shared.tell(done);
            }
            write(&self.client, &out)
        })
    }

    fn client_to_broker(&self, shared: &Shared) -> Result<()> {
        pass(&self.client, |frames| {
            let (mut out, mut back) = (BytesMut::new(), BytesMut::new());
            while let Some(frame) = frames.next()? {
                // Locked for SENDs only: a client that does not read must still be able to send what makes it read again.
                if frame.type_is(Type::Send) && lock(&shared.faults).drops_sends() {
                    let mut link = lock(&self.link);
                    let done =
                        link.relay_send(frame, &mut lock(&shared.faults), &mut out, &mut back);
                    write(&self.client, &back)?;
                    back.clear();
                    drop(link);
                    shared.tell(done);
                } else {
                    fault::append(frame, &mut out);
                }
            }
            write(&self.broker, &out)
        })
    }
}

/// Runs until the process is ended.
pub(crate) fn run(args: &ProxyArgs) -> Result<()> {
    let broker = Address::resolve(&args.to)?;
    let (listener, url) = sink::bind(args.port)?;
    println!("proxy is ready: {url}");
    let shared = Arc::new(Shared {
        url,
        faults: Mutex::new(Faults::new(args.faults)),
        told: Mutex::new(0),
    });
    loop {
        let (client, _) = listener
            .accept()
            .context(|| "cannot accept a connection".into())?;
        // A connection that cannot be passed on is closed: its peer notices.
        if let Err(failure) = join(client, &broker, &shared) {
            eprintln!("proxy: {failure}");
        }
    }
}

fn join(client: TcpStream, to: &Address, shared: &Arc<Shared>) -> Result<()> {
    let broker = TcpStream::connect(to.socket)
        .context(|| format!("cannot connect to the broker at {}", to.socket))?;
    for socket in [&client, &broker] {
        socket
            .set_nodelay(true)
            .context(|| "cannot set up a connection".into())?;
    }
    let pair = Arc::new(Pair {
        client,
        broker,
        link: Mutex::new(Link::default()),
    });
    for direction in [Pair::broker_to_client, Pair::client_to_broker] {
        let (pair, shared) = (Arc::clone(&pair), Arc::clone(shared));
        thread::spawn(move || pair.end(direction(&pair, &shared)));
    }
    Ok(())
}

/// Reads until the end of the stream; `whole` takes the frames that are complete after each read.
fn pass(mut from: &TcpStream, mut whole: impl FnMut(&mut Input) -> Result<()>) -> Result<()> {
    let mut input = Input::new(READ_SIZE);
    loop {
        match from.read(input.space()) {
            Ok(0) => return Ok(()),
            Ok(n) => input.filled(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // The other direction has ended, or the peer is gone: an end like any other.
            Err(_) => return Ok(()),
        }
        whole(&mut input)?;
    }
}

fn write(mut to: &TcpStream, bytes: &[u8]) -> Result<()> {
    // Whoever does not take it has gone, and the other direction sees its end.
    let _ = to.write_all(bytes);
    Ok(())
}

/// Passes on the answer of a lookup that names this proxy where it named the broker.
fn redirect(frame: RawFrame<'_>, url: &str, out: &mut BytesMut) -> Result<()> {
    let mut command =
        decode_command(frame.command).context(|| "a damaged answer of LOOKUP".into())?;
    if let Some(answer) = &mut command.lookup_topic_response
        && answer.broker_service_url.is_some()
    {
        answer.broker_service_url = Some(url.into());
    }
    encode::command(&command, out);
    Ok(())
}

/// A thread that panicked leaves what it had: counters, which are never half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
