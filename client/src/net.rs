//! Sockets: two tasks for each connection, one that reads and one that writes.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use vela_codec::{Cumulation, FrameDecoder, Sizes};

use crate::core::ConnKey;
use crate::driver::Shared;
use crate::error::{Error, Result};

/// Bytes that one write is given at most, and a piece more.
const WRITE_BYTES: usize = 512 * 1024;

/// Pieces that one write is given at most.
const WRITE_PIECES: usize = 64;

/// The largest frame taken; see the same in the machine.
const MAX_FRAME: usize = 256 * 1024 * 1024;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// What wakes the tasks of a connection.
#[derive(Default)]
pub(crate) struct Wakers {
    /// There is something to write.
    pub(crate) output: Notify,
    ended: Notify,
    closed: AtomicBool,
}

impl Wakers {
    /// Ends both tasks.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.output.notify_one();
        self.ended.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Connects, reads and writes until the connection is gone, and says so.
pub(crate) async fn run(shared: Arc<Shared>, conn: ConnKey, url: String, wakers: Arc<Wakers>) {
    let connecting = tokio::time::timeout(shared.connection_timeout, connect(&shared, &url));
    let why = match connecting.await {
        Err(_) => format!("{url}: no connection within connection_timeout"),
        Ok(Err(Error::Connection(why))) => format!("{url}: {why}"),
        Ok(Err(error)) => format!("{url}: {error}"),
        Ok(Ok((reader, writer))) => {
            tracing::debug!(url, "connected");
            let writing = shared.runtime.spawn(write(
                Arc::clone(&shared),
                conn,
                writer,
                Arc::clone(&wakers),
            ));
            shared.with(|inner, now| inner.machine.connected(now, conn));
            let end = tokio::select! {
                end = read(&shared, conn, reader) => end,
                () = wakers.ended.notified() => Ok(()),
            };
            wakers.close();
            drop(writing.await);
            match end {
                Ok(()) => format!("{url}: closed by the broker"),
                Err(Error::Connection(why)) => format!("{url}: {why}"),
                Err(error) => format!("{url}: {error}"),
            }
        }
    };
    tracing::debug!(%why, "connection ended");
    shared.with(|inner, now| {
        inner.forget_conn(conn);
        inner.machine.connection_lost(now, conn, why);
    });
}

async fn connect(shared: &Shared, url: &str) -> Result<(Reader, Writer)> {
    let fault = |error: io::Error| Error::Connection(error.to_string());
    let (scheme, address) = url
        .split_once("://")
        .ok_or_else(|| Error::Connection("no URL of a broker".into()))?;
    let address = address.trim_end_matches('/');
    let stream = TcpStream::connect(address).await.map_err(fault)?;
    stream.set_nodelay(true).map_err(fault)?;
    if scheme == "pulsar" {
        let (reader, writer) = stream.into_split();
        return Ok((Box::new(reader), Box::new(writer)));
    }
    let tls = shared.tls.as_ref();
    let tls = tls.ok_or_else(|| Error::Tls("TLS is not set up for this client".into()))?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let stream = tls.connect(stream, host).await?;
    let (reader, writer) = tokio::io::split(stream);
    Ok((Box::new(reader), Box::new(writer)))
}

async fn read(shared: &Arc<Shared>, conn: ConnKey, mut reader: Reader) -> Result<()> {
    let fault = |error: io::Error| Error::Connection(error.to_string());
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    let mut cumulation = Cumulation::new(Sizes::default(), None);
    let mut frames = Vec::new();
    loop {
        if let Some(space) = decoder.space() {
            let n = reader.read(space).await.map_err(fault)?;
            if n == 0 {
                return Ok(());
            }
            decoder.advance(n);
        } else {
            let n = reader.read(cumulation.space()).await.map_err(fault)?;
            if n == 0 {
                return Ok(());
            }
            decoder.push(cumulation.read(n));
        }
        let end = loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Error::Protocol(error.to_string())),
            }
        };
        decoder.settle(None);
        if !frames.is_empty() {
            shared.with(|inner, now| {
                for frame in frames.drain(..) {
                    inner.machine.handle_frame(now, conn, &frame);
                }
            });
        }
        end?;
    }
}

async fn write(shared: Arc<Shared>, conn: ConnKey, mut writer: Writer, wakers: Arc<Wakers>) {
    let mut pieces = Vec::new();
    while !wakers.is_closed() {
        let some = shared.with(|inner, _| inner.machine.transmit(conn, WRITE_BYTES, &mut pieces));
        if !some {
            wakers.output.notified().await;
            continue;
        }
        let end = tokio::select! {
            end = write_all(&mut writer, &mut pieces) => end,
            // A socket that takes nothing does not hold up the end.
            () = closed(&wakers) => return,
        };
        if end.is_err() {
            // The reader finds out too, and says why.
            return wakers.ended.notify_one();
        }
        pieces.clear();
    }
    // What cannot be said any more is not missed.
    drop(writer.shutdown().await);
}

/// Until the connection is to end. A wake-up for more output is not one.
async fn closed(wakers: &Wakers) {
    while !wakers.is_closed() {
        wakers.output.notified().await;
    }
}

async fn write_all(writer: &mut Writer, pieces: &mut [Bytes]) -> io::Result<()> {
    let mut first = 0;
    while first < pieces.len() {
        let rest = pieces.get(first..).unwrap_or_default();
        let slices: Vec<IoSlice<'_>> = rest
            .iter()
            .take(WRITE_PIECES)
            .map(|piece| IoSlice::new(piece))
            .collect();
        let mut written = writer.write_vectored(&slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(piece) = pieces.get_mut(first).filter(|piece| piece.len() <= written) {
            written -= piece.len();
            first += 1;
        }
        if let Some(piece) = pieces.get_mut(first) {
            piece.advance(written);
        }
    }
    writer.flush().await
}
