#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::engine::{self, Engine, EngineConfig, Message, Metadata, Now, ServiceAddress};
use crate::store::log::{Lane, LaneConfig, LaneState};
use crate::store::meta::{MemoryMeta, Meta, MetaReply};
use bytes::Bytes;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;
use vela_limiter::Throttle;

/// A broker without threads: metadata in memory, an engine whose disk is done at once, and a sample that tests change.
pub(super) struct Fake {
    settings: Arc<Settings>,
    sample: Mutex<Sample>,
    meta: Mutex<MemoryMeta>,
    pub(super) engine: Mutex<Engine>,
    /// What the core does with questions.
    pub(super) core: Mutex<Core>,
}

/// What the core does with questions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Core {
    Answers,
    /// Its mailbox is full.
    Full,
    /// It takes them and never answers.
    Hangs,
    /// It takes them; nothing becomes durable.
    DiskHangs,
}

pub(super) const NOW: Now = Now {
    ms: 1_000_000,
    wall_ms: 1_700_000_000_000,
};

fn engine() -> Engine {
    let config = EngineConfig {
        core: 0,
        cores: 1,
        shards: 1,
        settings: Arc::new(engine::Settings::default()),
        service: ServiceAddress::default(),
        log_budget: 1 << 20,
        rates: Arc::new(crate::runtime::RateTable::default()),
    };
    let lane = Lane::new(0, 1, 1, LaneConfig::default());
    Engine::new(
        config,
        vec![(0, lane, LaneState::default())],
        Metadata::default(),
    )
}

impl Fake {
    /// Carries out what the engine wants, until it wants nothing more.
    pub(super) fn run(&self, durable: bool) {
        let mut engine = self.engine.lock().unwrap();
        loop {
            let more = engine.end_of_turn(NOW);
            let effects = engine.effects();
            for (asker, answer) in effects.admin.drain(..) {
                asker.answer(answer);
            }
            let writes = std::mem::take(&mut effects.writes);
            for (shard, chunk) in writes.iter().filter(|_| durable) {
                engine.durable(*shard, chunk.seq(), NOW);
            }
            let requests = std::mem::take(&mut engine.effects().metadata);
            for request in &requests {
                let mut meta = self.meta.lock().unwrap();
                let done = match &request.value {
                    Some(value) => meta
                        .put(&request.key, value.clone(), request.expected)
                        .is_ok(),
                    None => meta.delete(&request.key, request.expected).is_ok(),
                };
                drop(meta);
                engine.metadata_changed(&request.key, request.value.as_ref());
                engine.metadata_done(request.token, Ok(done), NOW);
            }
            if !more && requests.is_empty() && (writes.is_empty() || !durable) {
                return;
            }
        }
    }
}

impl Broker for Fake {
    fn sample(&self) -> Sample {
        self.sample.lock().unwrap().clone()
    }

    fn configuration(&self) -> Configuration {
        let found = self.meta.lock().unwrap().list("config/").unwrap();
        let text = |value: &Bytes| String::from_utf8(value.to_vec()).unwrap();
        Configuration {
            settings: Arc::clone(&self.settings),
            overrides: found
                .iter()
                .map(|(key, found)| (key["config/".len()..].to_owned(), text(&found.value)))
                .collect(),
        }
    }

    fn metadata(&self, request: MetaRequest, done: Box<dyn FnOnce(MetaResult) + Send>) {
        let changed = match &request {
            MetaRequest::Put { key, value, .. } => Some((key.clone(), Some(value.clone()))),
            MetaRequest::Delete { key, .. } => Some((key.clone(), None)),
            _ => None,
        };
        let mut meta = self.meta.lock().unwrap();
        let reply = match request {
            MetaRequest::Get { key } => meta.get(&key).map(MetaReply::Value),
            MetaRequest::List { prefix } => meta.list(&prefix).map(MetaReply::List),
            MetaRequest::Put {
                key,
                value,
                expected,
            } => meta.put(&key, value, expected).map(MetaReply::Version),
            MetaRequest::Delete { key, expected } => {
                meta.delete(&key, expected).map(|()| MetaReply::Deleted)
            }
            MetaRequest::NewEpoch => meta.new_epoch().map(MetaReply::Epoch),
        };
        if let Some((key, value)) = changed
            && reply.is_ok()
        {
            let mut engine = self.engine.lock().unwrap();
            engine.metadata_changed(&key, value.as_ref());
        }
        done(reply);
    }

    fn place(&self) -> Place {
        Place {
            cores: 1,
            shards: 1,
            advertised: None,
            port: 6650,
            web_port: 8080,
            core_ports: Vec::new(),
        }
    }

    fn ask(
        &self,
        core: CoreId,
        asker: Asker,
        request: Box<Request>,
    ) -> Result<(), (Asker, Box<Request>)> {
        let does = *self.core.lock().unwrap();
        match does {
            Core::Full => return Err((asker, request)),
            Core::Hangs => std::mem::forget(asker),
            Core::Answers | Core::DiskHangs => {
                let mail = vec![Message::Admin { asker, request }];
                self.engine.lock().unwrap().mail(core, mail, NOW);
                self.run(does == Core::Answers);
            }
        }
        Ok(())
    }
}

pub(super) struct Http {
    pub(super) fake: Arc<Fake>,
    port: u16,
    _server: Server,
}

pub(super) struct Got {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Got {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Http {
    /// Changes metadata from outside.
    pub(super) fn put_metadata(&self, key: &str, value: &str) {
        let request = MetaRequest::Put {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            expected: None,
        };
        self.fake
            .metadata(request, Box::new(|done| drop(done.unwrap())));
    }

    /// Another server on the same broker, as after a restart.
    pub(super) fn again(&self) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let fake = Arc::clone(&self.fake);
        let broker = Arc::clone(&fake) as Arc<dyn Broker>;
        let server = start_with(listener, broker, cores::LIMIT).unwrap();
        Self {
            fake,
            port,
            _server: server,
        }
    }

    /// Waits for a state.
    pub(super) fn until(&self, reached: impl Fn() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while !reached() {
            assert!(std::time::Instant::now() < end, "it never came");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn new() -> Self {
        Self::with(cores::LIMIT)
    }

    /// With settings.
    pub(super) fn configured(settings: Settings) -> Self {
        Self::made(cores::LIMIT, settings)
    }

    /// A connection.
    pub(super) fn connect(&self) -> std::net::TcpStream {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Somebody is answered, sooner or later.
    pub(super) fn is_served(&self) {
        assert_eq!(
            self.call("GET", "/admin/v2/brokers/health", "", "").status,
            200
        );
    }

    pub(super) fn with(limit: Duration) -> Self {
        Self::made(limit, Settings::default())
    }

    fn made(limit: Duration, settings: Settings) -> Self {
        let mut meta = MemoryMeta::default();
        meta.put("namespace/t/n", Bytes::from_static(b"{\"x\":1}"), None)
            .unwrap();
        let fake = Arc::new(Fake {
            settings: Arc::new(settings),
            sample: Mutex::new(Sample {
                ready: true,
                cores: vec![CoreSample::default(), CoreSample::default()],
                ..Sample::default()
            }),
            meta: Mutex::new(meta),
            engine: Mutex::new(engine()),
            core: Mutex::new(Core::Answers),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = start_with(listener, Arc::clone(&fake) as Arc<dyn Broker>, limit).unwrap();
        Self {
            fake,
            port,
            _server: server,
        }
    }

    pub(super) fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> Got {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Got {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(super) fn get(&self, path: &str) -> Got {
        self.call("GET", path, "", "")
    }

    pub(super) fn json(&self, method: &str, path: &str, body: &str) -> Got {
        self.call(method, path, "Content-Type: application/json\r\n", body)
    }

    /// Status and body, as most tests want them.
    pub(super) fn is(&self, method: &str, path: &str, status: u16, body: &str) {
        let got = self.call(method, path, "", "");
        assert_eq!((got.status, got.body.as_str()), (status, body), "{path}");
    }
}

#[test]
fn health_and_readiness_say_what_is_wrong() {
    let http = Http::new();
    http.is("GET", "/admin/v2/brokers/health", 200, "ok");
    http.is("GET", "/admin/v2/brokers/health/", 200, "ok");
    http.is("GET", "/admin/v2/brokers/ready", 200, "ok");
    http.fake.sample.lock().unwrap().cores[1].stalled = true;
    let sick = http.get("/admin/v2/brokers/health");
    assert_eq!(sick.status, 500);
    assert!(sick.body.contains("Core 1 stands still"), "{}", sick.body);
    http.is("GET", "/admin/v2/brokers/ready", 200, "ok");
    http.fake.sample.lock().unwrap().ready = false;
    assert_eq!(http.get("/admin/v2/brokers/health").status, 503);
    assert_eq!(http.get("/admin/v2/brokers/ready").status, 500);
}

#[test]
fn metrics_of_cores_memory_and_throttles() {
    let http = Http::new();
    {
        let (mut counts, mut throttle) = (HoldCounts::default(), Throttle::new());
        throttle.hold(Reason::PendingRequests, &mut counts);
        throttle.hold(Reason::TopicRate, &mut counts);
        let _ = throttle.release(Reason::PendingRequests, &mut counts);
        let mut sample = http.fake.sample.lock().unwrap();
        sample.memory = MemorySample {
            budget: 1000,
            holders: [("inbound", 77), ("log", 8), ("cache", 9), ("outbound", 10)],
            retained: 77,
            limit: 500,
            active: true,
            throttled: true,
            throttles: 3,
            held_connections: 11,
            holds: 30,
            releases: 19,
            ..MemorySample::default()
        };
        sample.cores[0] = CoreSample {
            turns: 5,
            messages_in: 3,
            held: [0, 2, 0, 4, 0, 0, 0, 0, 0],
            holds: counts,
            rate_limited_topics: vec![("persistent://t/n/a\"b/c".to_owned(), 6)].into(),
            throttled: 5,
            rate_limited: 6,
            ..CoreSample::default()
        };
        sample.cores[1] = CoreSample {
            stalls: 1,
            stalled: true,
            connections: 2,
            held: [0, 0, 0, 1, 0, 0, 0, 0, 0],
            holds: counts,
            throttled: 1,
            ..CoreSample::default()
        };
    }
    // Twice: counters are the broker's, not counted up by looking.
    for _ in 0..2 {
        let metrics = http.get("/metrics").body;
        for line in [
            "vela_retained_bytes 77",
            "vela_core_turns_total{core=\"0\"} 5",
            "vela_core_stalls_total{core=\"1\"} 1",
            "vela_core_stalled{core=\"1\"} 1",
            "vela_connections{core=\"1\"} 2",
            "vela_messages_in_total{core=\"0\"} 3",
            "vela_publish_rate_limit_times_total{core=\"0\"} 6",
            "# TYPE vela_messages_in_total counter",
            "# TYPE vela_retained_bytes gauge",
            "pulsar_broker_publish_in_progress_buffer_memory_usage{cluster=\"standalone\"} 77",
            "pulsar_broker_publish_in_progress_buffer_memory_throttled{cluster=\"standalone\"} 1",
            "pulsar_broker_throttled_connections{cluster=\"standalone\"} 17",
            "vela_throttled_connections{reason=\"memory\"} 11",
            "vela_throttled_connections{reason=\"topic-rate\"} 5",
            "vela_throttled_connections{reason=\"broker-rate\"} 0",
            "vela_throttle_holds_total{reason=\"memory\"} 30",
            "vela_throttle_releases_total{reason=\"memory\"} 19",
            "vela_throttle_holds_total{reason=\"pending-requests\"} 2",
            "vela_throttle_releases_total{reason=\"pending-requests\"} 2",
            "vela_throttle_holds_total{reason=\"topic-rate\"} 2",
            "vela_throttle_releases_total{reason=\"topic-rate\"} 0",
            "vela_throttle_holds_total{reason=\"publish-charge\"} 0",
            "pulsar_broker_connection_rate_limit_count_total{cluster=\"standalone\",pulsar_connection_rate_limit_operation_name=\"paused\"} 32",
            "pulsar_broker_connection_rate_limit_count_total{cluster=\"standalone\",pulsar_connection_rate_limit_operation_name=\"resumed\"} 19",
            "pulsar_broker_connection_rate_limit_count_total{cluster=\"standalone\",pulsar_connection_rate_limit_operation_name=\"throttled\"} 2",
            "pulsar_broker_connection_rate_limit_count_total{cluster=\"standalone\",pulsar_connection_rate_limit_operation_name=\"unthrottled\"} 2",
            "# TYPE pulsar_publish_rate_limit_times gauge",
            "pulsar_publish_rate_limit_times{cluster=\"standalone\",namespace=\"t/n/a\\\"b\",topic=\"persistent://t/n/a\\\"b/c\"} 6",
            "vela_memory_throttles_total 3",
            "vela_memory_clears_total 0",
            "vela_buffer_memory_bytes{holder=\"inbound\"} 77",
            "vela_buffer_memory_bytes{holder=\"outbound\"} 10",
            "vela_buffer_memory_budget_bytes 1000",
            "vela_memory_limit_bytes 500",
            "vela_memory_auto_active 1",
        ] {
            assert!(
                metrics.lines().any(|each| each == line),
                "{line} is not in {metrics}"
            );
        }
        let families = metrics.lines().filter_map(|line| {
            let name = line.strip_prefix("# TYPE ")?;
            name.split(' ').next()
        });
        for family in families {
            let help = format!("# HELP {family} ");
            assert!(metrics.contains(&help), "{family} says not what it is");
        }
    }
}

const CONFIGURATION: &str = "/admin/v2/brokers/configuration";

#[test]
fn dynamic_values_are_set_shown_and_deleted() {
    let http = Http::new();
    let names: Vec<String> = serde_json::from_str(&http.get(CONFIGURATION).body).unwrap();
    assert!(names.contains(&"maxPublishRatePerTopicInMessages".to_owned()));
    assert!(!names.contains(&"clusterName".to_owned()));
    let values = format!("{CONFIGURATION}/values");
    http.is("GET", &values, 200, "{}");
    for value in ["50", "abc", "with%20space%2Fslash"] {
        let path = format!("{CONFIGURATION}/defaultNumPartitions/{value}");
        let got = http.call("POST", &path, "", "");
        assert_eq!((got.status, got.body.as_str()), (200, ""));
        assert_eq!(got.header("content-type"), None);
    }
    let got = http.get(&values);
    assert_eq!(got.body, "{\"defaultNumPartitions\":\"with space/slash\"}");
    assert_eq!(got.header("content-type"), Some("application/json"));
    let one = format!("{CONFIGURATION}/defaultNumPartitions");
    for _ in 0..2 {
        http.is("DELETE", &one, 200, "");
    }
    http.is("GET", &values, 200, "{}");
    let runtime = http.get(&format!("{CONFIGURATION}/runtime")).body;
    let runtime: BTreeMap<String, String> = serde_json::from_str(&runtime).unwrap();
    assert_eq!(runtime["maxMessageSize"], "5242880");
}

#[test]
fn what_is_not_dynamic_is_refused() {
    let http = Http::new();
    for name in ["clusterName", "noSuchSetting"] {
        let path = format!("{CONFIGURATION}/{name}");
        let no = |word: &str| format!("{{\"reason\":\"Can't {word} non-dynamic configuration\"}}");
        http.is("POST", &format!("{path}/x"), 412, &no("update"));
        http.is("DELETE", &path, 412, &no("delete"));
    }
    assert!(
        http.fake
            .meta
            .lock()
            .unwrap()
            .list("config/")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn wrong_paths_and_methods_get_the_page_that_is_accepted() {
    let http = Http::new();
    let wrong = http.call("POST", &format!("{CONFIGURATION}/x"), "", "");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("allow"), Some("DELETE,OPTIONS"));
    assert!(
        wrong
            .header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    let json = http.call("GET", "/a%3Cb?c=1&d", "Accept: application/json\r\n", "");
    assert_eq!(json.status, 404);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&json.body).unwrap(),
        serde_json::json!({"message": "Not Found", "url": "http://x/a%3Cb?c=1&d", "status": "404"})
    );
    let html = http.get("/a?b&c");
    assert_eq!(html.status, 404);
    assert!(html.body.contains("/a?b&amp;c"), "{}", html.body);
    http.is("PUT", &format!("{CONFIGURATION}/x/y"), 405, "");
    let values = format!("{CONFIGURATION}/values");
    let options = http.call("OPTIONS", &values, "", "");
    assert_eq!(options.status, 200);
    assert!(options.header("allow").unwrap().ends_with(",OPTIONS"));
    let plain = http.call("GET", &values, "Accept: text/plain\r\n", "");
    assert_eq!(plain.status, 406);
}

const RATE: &str = "/admin/v2/namespaces/t/n/publishRate";

#[test]
fn publish_rates_of_a_namespace() {
    let http = Http::new();
    http.is("GET", RATE, 200, "");
    for (body, messages, bytes) in [
        (
            "{\"publishThrottlingRateInMsg\":1000,\"publishThrottlingRateInByte\":1048576}",
            1000,
            1_048_576,
        ),
        ("{\"publishThrottlingRateInMsg\":10}", 10, -1),
        ("{\"publishThrottlingRateInByte\":5.7,\"x\":1}", -1, 5),
        ("{\"publishThrottlingRateInMsg\":\"12\"}", 12, -1),
        ("{\"publishThrottlingRateInMsg\":null}", 0, -1),
        ("{}", -1, -1),
    ] {
        assert_eq!(http.json("POST", RATE, body).status, 204, "{body}");
        let got = http.get(RATE).body;
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&got).unwrap(),
            serde_json::json!({
                "publishThrottlingRateInMsg": messages,
                "publishThrottlingRateInByte": bytes,
            }),
            "{body}"
        );
    }
    for body in [
        "{bad",
        "[]",
        "5",
        "{\"publishThrottlingRateInMsg\":\"a\"}",
        "{\"publishThrottlingRateInMsg\":3000000000}",
        "{\"publishThrottlingRateInByte\":1e300}",
        "{\"publishThrottlingRateInByte\":{}}",
    ] {
        let got = http.json("POST", RATE, body);
        assert_eq!(got.status, 400, "{body}");
        assert!(
            got.header("content-type")
                .unwrap()
                .starts_with("text/plain")
        );
    }
    assert_eq!(http.call("POST", RATE, "", "{}").status, 415);
    assert_eq!(http.json("POST", RATE, "null").status, 204);
    http.is("GET", RATE, 200, "");
    http.is("DELETE", RATE, 204, "");
    // What else the namespace has is untouched.
    let stored = http.fake.meta.lock().unwrap().get("namespace/t/n").unwrap();
    let stored: serde_json::Value = serde_json::from_slice(&stored.unwrap().value).unwrap();
    assert_eq!(stored["x"], 1);

    let none = "{\"reason\":\"Namespace does not exist\"}";
    let path = "/admin/v2/namespaces/t/none/publishRate";
    http.is("GET", path, 404, none);
    http.is("DELETE", path, 404, none);
    assert_eq!(http.json("POST", path, "{}").body, none);
}

const GROUPS: &str = "/admin/v2/resourcegroups";
const GROUP_OF: &str = "/admin/v2/namespaces/t/n/resourcegroup";

#[test]
fn resource_groups_and_their_namespaces() {
    let http = Http::new();
    let g = format!("{GROUPS}/g");
    http.is("GET", GROUPS, 200, "[]");
    http.is(
        "GET",
        &g,
        404,
        "{\"reason\":\"ResourceGroup does not exist\"}",
    );
    assert_eq!(
        http.json("PUT", &g, "{\"publishRateInMsgs\":7}").status,
        204
    );
    let body = "{\"publishRateInBytes\":3,\"publishRateInMsgs\":null}";
    assert_eq!(http.json("PUT", &g, body).status, 204);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&http.get(&g).body).unwrap(),
        serde_json::json!({
            "publishRateInMsgs": 7, "publishRateInBytes": 3, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1,
        })
    );
    for (path, body, status) in [
        (&g, "{\"publishRateInMsgs\":99999999999}", 400),
        (&g, "[]", 400),
        (&g, "null", 400),
        (&format!("{GROUPS}/a%2Fb"), "{}", 412),
    ] {
        assert_eq!(http.json("PUT", path, body).status, status, "{body}");
    }
    http.is("GET", GROUPS, 200, "[\"g\"]");

    http.is("GET", GROUP_OF, 200, "");
    let none = "{\"reason\":\"ResourceGroup does not exist\"}";
    http.is("POST", &format!("{GROUP_OF}/none"), 412, none);
    http.is("POST", &format!("{GROUP_OF}/g"), 204, "");
    http.is("GET", GROUP_OF, 200, "g");
    http.is(
        "DELETE",
        &g,
        412,
        "{\"reason\":\"ResourceGroup is in use\"}",
    );
    http.is("DELETE", GROUP_OF, 204, "");
    http.is("DELETE", &g, 204, "");
    let gone = http.call("DELETE", &g, "", "");
    assert_eq!(gone.status, 500);
    assert!(
        gone.body
            .contains("path /admin/resourcegroups/g not found.")
    );
    let path = "/admin/v2/namespaces/t/none/resourcegroup";
    http.is(
        "GET",
        path,
        404,
        "{\"reason\":\"Namespace does not exist\"}",
    );
    let none = "{\"reason\":\"Namespace policies does not exist\"}";
    http.is("DELETE", path, 404, none);
}
