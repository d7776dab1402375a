//! The HTTP server itself: connections, and what they may cost.
//!
//! At most `maxHttpServerConnections` are served at once; further ones wait to be accepted. Whoever sends nothing, or sends his headers or his
//! body slowly, or does not read his answer, is let go of after `httpServerIdleTimeout`. Bodies are read before a request is looked at, up to
//! `httpMaxRequestSize` each and [`BODIES_MAX`] together.

use super::Shared;
use super::answer;
use crate::config::Settings;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, Sleep};

/// Bytes of request bodies at once. Whoever brings more waits until others are done, as long as his own body may take.
pub(super) const BODIES_MAX: usize = 64 << 20;
/// They are counted in units of so many bytes.
pub(super) const BODY_UNIT: usize = 16 << 10;
/// Bytes of a body that is too large that are read, and dropped, before that is said.
const OVER_MAX: usize = 4 << 20;
/// How soon accepting is tried again after it failed: most likely there are no descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long requests under way may take when the broker stops.
const LAST_CALL: Duration = Duration::from_secs(5);

/// What connections may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    connections: usize,
    header: usize,
    idle: Duration,
    /// The descriptor from which on sockets are not kept.
    descriptors: u64,
}

impl Limits {
    pub(super) fn of(settings: &Settings, shards: u32) -> Self {
        let connections = usize::try_from(settings.max_http_server_connections);
        Self {
            connections: connections
                .unwrap_or(Semaphore::MAX_PERMITS)
                .clamp(1, Semaphore::MAX_PERMITS),
            header: usize::try_from(settings.http_max_request_header_size).unwrap_or(8192),
            idle: Duration::from_millis(settings.http_server_idle_timeout),
            descriptors: crate::runtime::connection_descriptors(shards),
        }
    }
}

/// Serves connections until `stop` is sent or dropped.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    stop: oneshot::Receiver<()>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let (ending, ended) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let accepted = async {
            let place = place.await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = &mut stop => break,
        };
        let (Ok((socket, _)), Ok(place)) = (accepted, place) else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        if u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number >= limits.descriptors) {
            // The log needs the rest. Whoever comes is let go of, and not too often.
            drop((socket, place));
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        }
        let io = TokioIo::new(Patient::new(socket, limits.idle));
        let service = TowerToHyperService::new(app.clone());
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.idle)
                .max_buf_size(limits.header.max(8192))
                .serve_connection(io, service);
            let mut connection = pin!(connection);
            tokio::select! {
                // Whatever ended it: the peer is gone, or was let go of.
                _ = connection.as_mut() => {}
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop((listener, ending));
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(LAST_CALL, places.acquire_many(all)).await;
}

/// Around all resources: the body is read before anything is done.
pub(super) async fn read_body(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let settings = shared.settings();
    let most = usize::try_from(settings.http_max_request_size).unwrap_or(usize::MAX);
    let idle = Duration::from_millis(settings.http_server_idle_timeout);
    let deadline = Instant::now() + idle;
    match tokio::time::timeout_at(deadline, collect(body, most, &shared.bodies)).await {
        Ok(Ok((bytes, held))) => {
            let response = next
                .run(Request::from_parts(parts, Body::from(bytes)))
                .await;
            drop(held);
            response
        }
        Ok(Err(refused)) => refused,
        Err(_) => answer::reason(
            StatusCode::REQUEST_TIMEOUT,
            &format!(
                "The body of the request did not come within {} ms: httpServerIdleTimeout",
                idle.as_millis()
            ),
        ),
    }
}

fn too_large(most: usize) -> Response {
    answer::reason(
        StatusCode::PAYLOAD_TOO_LARGE,
        &format!("The body of a request may have {most} bytes: httpMaxRequestSize"),
    )
}

/// A whole body, and its part of what all bodies may take.
async fn collect(
    mut body: Body,
    most: usize,
    bodies: &Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Response> {
    let mut bytes = Vec::new();
    let mut held: Option<OwnedSemaphorePermit> = None;
    let mut over = 0;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else {
            return Err(StatusCode::BAD_REQUEST.into_response());
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > most || over > 0 {
            // The rest is not kept, but a part of it read: who still writes does not read an answer.
            over += data.len();
            (bytes, held) = (Vec::new(), None);
            if over > OVER_MAX {
                break;
            }
            continue;
        }
        let units = (bytes.len() + data.len()).div_ceil(BODY_UNIT);
        let more = units - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if let Ok(more) = u32::try_from(more)
            && more > 0
            && let Ok(more) = Arc::clone(bodies).acquire_many_owned(more).await
        {
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        bytes.extend_from_slice(&data);
    }
    match over {
        0 => Ok((bytes, held)),
        _ => Err(too_large(most)),
    }
}

/// A socket whose peer has to take what it is sent.
struct Patient<S> {
    socket: S,
    idle: Duration,
    /// Until when it has to take something, if it took nothing last.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(socket: S, idle: Duration) -> Self {
        Self {
            socket,
            idle,
            until: None,
        }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.until = None;
            return poll;
        }
        let idle = self.idle;
        let until = self
            .until
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        match until.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        self.watch(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::admin::tests::Http;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn http(change: impl FnOnce(&mut Settings)) -> Http {
        let mut settings = Settings::default();
        change(&mut settings);
        Http::configured(settings)
    }

    /// What comes until the server closes the connection.
    fn rest(mut stream: TcpStream) -> String {
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut text = String::new();
        // A reset is an end as well.
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn who_sends_nothing_or_slowly_is_let_go() {
        let http = http(|settings| settings.http_server_idle_timeout = 200);
        for sent in [
            "",
            "GET /admin/v2/clus",
            "GET /metrics HTTP/1.1\r\nHost: x\r\n",
        ] {
            let mut stream = http.connect();
            stream.write_all(sent.as_bytes()).unwrap();
            rest(stream);
        }
        let mut stream = http.connect();
        stream
            .write_all(b"PUT /admin/v2/clusters/c HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
            .unwrap();
        let text = rest(stream);
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        assert!(text.contains("httpServerIdleTimeout"), "{text}");
        // An idle connection that has had its answer.
        let mut stream = http.connect();
        stream
            .write_all(b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert!(rest(stream).starts_with("HTTP/1.1 200 "));
    }

    /// The answer never fits into the socket's buffers.
    #[test]
    fn who_does_not_read_is_let_go() {
        let http = http(|settings| {
            settings.http_server_idle_timeout = 200;
            settings.max_http_server_connections = 1;
        });
        let mut stream = http.connect();
        let ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        // Until the server takes no more, or has given up.
        while stream.write_all(&ask).is_ok() {}
        // Its place is somebody else's in the end.
        http.is_served();
    }

    #[test]
    fn connections_have_places() {
        let http = http(|settings| settings.max_http_server_connections = 2);
        let held: Vec<TcpStream> = (0..2)
            .map(|_| {
                let mut stream = http.connect();
                stream
                    .write_all(b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: x\r\n\r\n")
                    .unwrap();
                assert_eq!(stream.read(&mut [0; 16]).unwrap(), 16);
                stream
            })
            .collect();
        let mut third = http.connect();
        third
            .write_all(
                b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            .unwrap();
        third.set_nonblocking(true).unwrap();
        let none = third.read(&mut [0; 16]).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        third.set_nonblocking(false).unwrap();
        drop(held);
        assert!(rest(third).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn bodies_and_headers_are_bounded() {
        let http = http(|settings| settings.http_max_request_size = 2000);
        let put = |size: usize| format!("{{\"serviceUrl\":\"http://{}\"}}", "x".repeat(size - 24));
        assert_eq!(
            http.json("PUT", "/admin/v2/clusters/a", &put(2000)).status,
            200
        );
        let got = http.json("PUT", "/admin/v2/clusters/b", &put(2001));
        assert_eq!(got.status, 413);
        assert!(got.body.contains("httpMaxRequestSize"), "{}", got.body);
        // Without a length, too.
        let mut stream = http.connect();
        let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
        let head =
            "PUT /admin/v2/clusters/c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..3 {
            stream.write_all(chunk.as_bytes()).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 413");
        let mut stream = http.connect();
        let head = format!(
            "GET /metrics HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n",
            "x".repeat(9000)
        );
        let _ = stream.write_all(head.as_bytes());
        assert!(rest(stream).starts_with("HTTP/1.1 431 "));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn bodies_wait_for_each_other() {
        let bodies = Arc::new(Semaphore::new(2));
        let body = |size: usize| Body::from(vec![0; size]);
        let (first, held) = collect(body(BODY_UNIT + 1), 1 << 20, &bodies)
            .await
            .unwrap();
        assert_eq!(
            (first.len(), bodies.available_permits()),
            (BODY_UNIT + 1, 0)
        );
        let second = collect(body(1), 1 << 20, &bodies);
        let mut second = pin!(second);
        let waits = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
        assert!(waits);
        drop(held);
        let (second, held) = second.await.unwrap();
        assert_eq!((second.len(), bodies.available_permits()), (1, 1));
        drop(held);
        assert_eq!(bodies.available_permits(), 2);
        assert!(collect(body(3), 2, &bodies).await.is_err());
    }
}
