//! HTTP: health, readiness, metrics. On a thread of its own, so that no request takes time from a core.

mod metrics;

use self::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// One core, as metrics show it.
#[derive(Debug, Clone, Copy, Default)]
pub struct CoreSample {
    /// Turns of its loop since the start.
    pub turns: u64,
    /// Times it was seen standing still for a second.
    pub stalls: u64,
    /// Sockets it has.
    pub connections: u64,
    /// Open producers.
    pub producers: u64,
    /// Open consumers.
    pub consumers: u64,
    /// Topics it owns.
    pub topics: u64,
    /// Subscriptions of these topics.
    pub subscriptions: u64,
    /// Messages published since the start.
    pub messages_in: u64,
    /// Messages dispatched since the start.
    pub messages_out: u64,
    /// Bytes published since the start.
    pub bytes_in: u64,
    /// Bytes dispatched since the start.
    pub bytes_out: u64,
    /// Message ids acknowledged since the start.
    pub acks: u64,
    /// Publishes refused since the start.
    pub publish_errors: u64,
    /// Connections closed because of what they sent, since the start.
    pub protocol_errors: u64,
}

/// Buffer memory and its limiter, as metrics show them.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemorySample {
    /// Bytes that inbound frames keep alive.
    pub retained: u64,
    /// No connection is read because of that.
    pub throttled: bool,
    /// Connections over their fair share are not read because of that.
    pub crowded: bool,
    /// `auto` limits at the moment.
    pub active: bool,
    /// The limit in bytes; 0: none.
    pub limit: u64,
    /// Bytes that all buffers may take; 0: not known.
    pub budget: u64,
    /// Bytes in use by holder.
    pub holders: [(&'static str, u64); 4],
    /// Times reading was stopped, since the start.
    pub throttles: u64,
    /// Times it was allowed again.
    pub clears: u64,
    /// Times `auto` began to limit.
    pub activations: u64,
    /// Times it stood down.
    pub stand_downs: u64,
    /// Connections that are not read because of memory.
    pub held_connections: u64,
    /// Connections closed because a frame made no progress.
    pub frames_stood: u64,
    /// Connections closed because others waited for the memory of their slow frame.
    pub frames_evicted: u64,
}

/// What the broker looks like at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Whether it takes connections.
    pub ready: bool,
    /// Buffer memory and its limiter.
    pub memory: MemorySample,
    /// All cores, by number.
    pub cores: Vec<CoreSample>,
}

/// Where samples come from. Called for each request, on the HTTP thread.
pub type Source = Arc<dyn Fn() -> Sample + Send + Sync>;

#[derive(Clone)]
struct Shared {
    source: Source,
    metrics: Arc<Metrics>,
}

/// The running HTTP server. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves HTTP on `listener` (set to non-blocking).
///
/// # Errors
/// If the thread or its event loop cannot be made.
pub fn start(listener: TcpListener, source: Source) -> io::Result<Server> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel();
    let app = router(source);
    let thread = std::thread::Builder::new()
        .name("vela-http".to_owned())
        .spawn(move || {
            let serve = axum::serve(listener, app).with_graceful_shutdown(async {
                // Dropped means the same as sent.
                let _ = stopped.await;
            });
            runtime.block_on(async {
                if let Err(error) = serve.await {
                    tracing::error!("HTTP server ended: {error}");
                }
            });
        })?;
    Ok(Server {
        stop: Some(stop),
        thread: Some(thread),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // Idle keep-alive connections would hold a graceful end up: the thread ends with the process instead
        // of being waited for.
        self.stop.take();
        self.thread.take();
    }
}

fn router(source: Source) -> Router {
    let shared = Shared {
        source,
        metrics: Arc::new(Metrics::new()),
    };
    Router::new()
        .route("/admin/v2/brokers/health", get(|| async { "ok" }))
        .route("/admin/v2/brokers/ready", get(ready))
        .route("/metrics", get(render))
        .with_state(shared)
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    if (shared.source)().ready {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting or stopping")
    }
}

async fn render(State(shared): State<Shared>) -> impl IntoResponse {
    let text = shared.metrics.render(&(shared.source)());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn get(port: u16, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn health_readiness_and_metrics() {
        let is_ready = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_ready);
        let source: Source = Arc::new(move || Sample {
            ready: flag.load(Ordering::SeqCst),
            memory: MemorySample {
                retained: 77,
                throttled: true,
                holders: [("inbound", 77), ("log", 5), ("cache", 0), ("outbound", 0)],
                throttles: 3,
                ..MemorySample::default()
            },
            cores: vec![
                CoreSample {
                    turns: 5,
                    messages_in: 3,
                    ..CoreSample::default()
                },
                CoreSample {
                    stalls: 1,
                    connections: 2,
                    ..CoreSample::default()
                },
            ],
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = start(listener, source).unwrap();

        let health = get(port, "/admin/v2/brokers/health");
        assert!(
            health.starts_with("HTTP/1.1 200") && health.ends_with("\r\nok"),
            "{health}"
        );
        assert!(get(port, "/admin/v2/brokers/ready").starts_with("HTTP/1.1 503"));
        is_ready.store(true, Ordering::SeqCst);
        assert!(get(port, "/admin/v2/brokers/ready").starts_with("HTTP/1.1 200"));
        assert!(get(port, "/nothing").starts_with("HTTP/1.1 404"));
        // Twice: counters are the broker's, not counted up by looking.
        for _ in 0..2 {
            let metrics = get(port, "/metrics");
            for line in [
                "vela_retained_bytes 77",
                "pulsar_broker_publish_in_progress_buffer_memory_usage 77",
                "pulsar_broker_publish_in_progress_buffer_memory_throttled 1",
                "vela_buffer_memory_bytes{holder=\"log\"} 5",
                "vela_memory_throttles_total 3",
                "vela_core_turns_total{core=\"0\"} 5",
                "vela_core_stalls_total{core=\"1\"} 1",
                "vela_connections{core=\"1\"} 2",
                "vela_messages_in_total{core=\"0\"} 3",
                "# TYPE vela_messages_in_total counter",
                "# TYPE vela_retained_bytes gauge",
                "# HELP vela_retained_bytes",
            ] {
                assert!(metrics.contains(line), "{line} is not in {metrics}");
            }
        }
        drop(server);
    }
}
