//! The schemas of the topics whose ids fall to this core: questions in, answers out, versions kept in the metadata store.
//!
//! What topics have is read from the metadata store when it is asked for and kept while there is room. Everything that concerns one id is
//! done one after another, so that two producers with the same new schema get one version. A version is answered when the store has it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use super::{
    Put, SCHEMA, Schema, SchemaError, SchemaId, SchemaPolicy, Versions, read_version, version_bytes,
};
use crate::engine::context::{Context, MetadataRequest};
use crate::engine::message::{ClientRef, CoreId, Message, SessionRef};
use crate::engine::reply;
use crate::engine::time::Now;

/// Tokens of this part's metadata requests have this bit.
pub(in crate::engine) const TOKEN: u64 = 1 << 63;
/// Questions that wait on one core; more are refused.
const MAX_WAITING: usize = 4096;
/// Bytes of schemas in them.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Bytes of versions that are kept for later questions, per core.
const MAX_KEPT: usize = 32 << 20;
/// Times that a change is decided anew because another came first.
const MAX_TRIES: u32 = 8;

/// Who asks.
#[derive(Copy, Clone, Debug)]
pub enum Asker {
    /// The core of a topic at which a producer or consumer is being opened.
    Opening {
        /// The core.
        core: CoreId,
        /// The producer or consumer.
        client: ClientRef,
    },
    /// A session: GET_SCHEMA or GET_OR_CREATE_SCHEMA.
    Session {
        /// The session.
        session: SessionRef,
        /// Its request.
        request_id: u64,
    },
}

/// What is asked about a topic's schema.
#[derive(Debug)]
pub enum Question {
    /// GET_SCHEMA: a version, or the newest.
    Get(Option<u64>),
    /// The schema of a producer, or of GET_OR_CREATE_SCHEMA.
    Bring(Schema),
    /// The schema of a consumer. `idle` = nobody uses the topic and nothing is stored, so that it may be added.
    Consume {
        /// The schema.
        schema: Schema,
        /// May it be added?
        idle: bool,
    },
    /// A producer without a schema, where the namespace wants schemas.
    Plain,
}

/// A question about a schema, on its way to the core that answers for the id.
#[derive(Debug)]
pub struct Ask {
    /// Whose schema.
    pub id: SchemaId,
    /// Who asks.
    pub asker: Asker,
    /// What.
    pub question: Question,
}

impl Ask {
    fn bytes(&self) -> usize {
        match &self.question {
            Question::Bring(schema) | Question::Consume { schema, .. } => schema.size(),
            Question::Get(_) | Question::Plain => 0,
        }
    }
}

/// The outcome for a producer or consumer: its version, if it has a schema that is kept.
pub type Decided = Result<Option<u64>, (ServerError, String)>;

/// What the metadata store has for an id.
#[derive(Debug)]
struct Known {
    versions: Versions,
    /// The value's version in the store, 0 = none; `None` = only a notice of the change was seen.
    stored: Option<u64>,
    size: usize,
    used: u64,
}

#[derive(Debug)]
enum State {
    /// Being read. `stale` = it changed in the meantime.
    Reading { stale: bool },
    /// A new version is being stored: what will then be known.
    Storing { versions: Versions, version: u64 },
}

/// An id with questions.
#[derive(Debug)]
struct Busy {
    state: State,
    token: u64,
    tries: u32,
    waiting: VecDeque<Ask>,
}

/// The registry of one core.
#[derive(Debug, Default)]
pub(in crate::engine) struct Registry {
    known: BTreeMap<SchemaId, Known>,
    busy: BTreeMap<SchemaId, Busy>,
    tokens: BTreeMap<u64, SchemaId>,
    next_token: u64,
    kept: usize,
    waiting: usize,
    waiting_bytes: usize,
    clock: u64,
}

/// What to do with a question, given what is known.
enum Step {
    Answer(Decided),
    Schema(Box<proto::Schema>, u64),
    Store(Versions, u64),
}

impl Registry {
    /// A question.
    pub(in crate::engine) fn ask(&mut self, cx: &mut Context, ask: Ask, now: Now) {
        let bytes = ask.bytes();
        if self.waiting >= MAX_WAITING
            || self.waiting_bytes.saturating_add(bytes) > MAX_WAITING_BYTES
        {
            let text = format!(
                "{} questions about schemas wait, with {} bytes of schemas in them; the limits are {MAX_WAITING} and {MAX_WAITING_BYTES}. Try again",
                self.waiting, self.waiting_bytes
            );
            return answer(cx, &ask, Err((ServerError::ServiceNotReady, text)));
        }
        self.waiting += 1;
        self.waiting_bytes += bytes;
        let id = ask.id.clone();
        if let Some(busy) = self.busy.get_mut(&id) {
            return busy.waiting.push_back(ask);
        }
        self.work(cx, id, VecDeque::from([ask]), 0, now);
    }

    /// Answers an id's questions in order, until one has to wait for the store.
    fn work(
        &mut self,
        cx: &mut Context,
        id: SchemaId,
        mut waiting: VecDeque<Ask>,
        mut tries: u32,
        now: Now,
    ) {
        self.clock += 1;
        while let Some(ask) = waiting.front() {
            let Some(known) = self.known.get_mut(&id) else {
                return self.read(cx, id, waiting, tries);
            };
            known.used = self.clock;
            match step(cx, ask, &known.versions, now) {
                Step::Store(versions, version) => {
                    let Some(expected) = known.stored else {
                        // To change it, the version in the store must be known.
                        self.forget(&id);
                        return self.read(cx, id, waiting, tries);
                    };
                    if tries < MAX_TRIES {
                        return self.store(cx, id, waiting, tries, versions, version, expected);
                    }
                    let text = "The topic's schema keeps changing; try again".to_owned();
                    answer(cx, ask, Err((ServerError::ServiceNotReady, text)));
                }
                Step::Schema(schema, version) => answer_schema(cx, ask, *schema, version),
                Step::Answer(decided) => answer(cx, ask, decided),
            }
            self.done(waiting.pop_front());
            tries = 0;
        }
        self.shrink();
    }

    fn done(&mut self, ask: Option<Ask>) {
        if let Some(ask) = ask {
            self.waiting = self.waiting.saturating_sub(1);
            self.waiting_bytes = self.waiting_bytes.saturating_sub(ask.bytes());
        }
    }

    fn token(&mut self, id: &SchemaId) -> u64 {
        self.next_token += 1;
        let token = TOKEN | self.next_token;
        self.tokens.insert(token, id.clone());
        token
    }

    fn read(&mut self, cx: &mut Context, id: SchemaId, waiting: VecDeque<Ask>, tries: u32) {
        let token = self.token(&id);
        cx.effects.metadata_reads.push((token, id.key()));
        let state = State::Reading { stale: false };
        self.busy.insert(
            id,
            Busy {
                state,
                token,
                tries,
                waiting,
            },
        );
    }

    #[allow(clippy::too_many_arguments)] // What `work` has at hand.
    fn store(
        &mut self,
        cx: &mut Context,
        id: SchemaId,
        waiting: VecDeque<Ask>,
        tries: u32,
        versions: Versions,
        version: u64,
        expected: u64,
    ) {
        let token = self.token(&id);
        cx.effects.metadata.push(MetadataRequest {
            token,
            key: id.key(),
            value: Some(versions.write()),
            expected: Some(expected),
        });
        let state = State::Storing { versions, version };
        self.busy.insert(
            id,
            Busy {
                state,
                token,
                tries: tries + 1,
                waiting,
            },
        );
    }

    fn take(&mut self, token: u64) -> Option<(SchemaId, Busy)> {
        let id = self.tokens.remove(&token)?;
        // Nobody else replaces an id that is busy.
        let busy = self.busy.remove(&id).filter(|busy| busy.token == token)?;
        Some((id, busy))
    }

    /// The store read a value: the value and its version, or that there is none.
    pub(in crate::engine) fn read_done(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: Result<Option<(Bytes, u64)>, String>,
        now: Now,
    ) {
        let Some((id, busy)) = self.take(token) else {
            return;
        };
        let Busy {
            state,
            tries,
            waiting,
            ..
        } = busy;
        if matches!(state, State::Reading { stale: true }) {
            return self.read(cx, id, waiting, tries);
        }
        let (value, stored) = match result {
            Ok(Some((value, stored))) => (value, stored),
            Ok(None) => (Bytes::new(), 0),
            Err(text) => return self.fail(cx, waiting, ServerError::MetadataError, &text),
        };
        match Versions::read(value) {
            Ok(versions) => self.keep(id.clone(), versions, Some(stored)),
            Err(error) => {
                tracing::error!(schema = %id, %error, "a schema of the metadata store cannot be read");
                return self.fail(cx, waiting, ServerError::MetadataError, &error.to_string());
            }
        }
        self.work(cx, id, waiting, tries, now);
    }

    /// The store took a change, or somebody else was first (`Ok(false)`).
    pub(in crate::engine) fn store_done(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: Result<bool, String>,
        now: Now,
    ) {
        let Some((id, busy)) = self.take(token) else {
            return;
        };
        let Busy {
            state,
            tries,
            mut waiting,
            ..
        } = busy;
        match (result, state) {
            (Ok(true), State::Storing { versions, version }) => {
                // If its notice came, what is known is this or newer.
                let old = self.known.get(&id);
                if old.is_none_or(|known| known.stored.is_some()) {
                    self.keep(id.clone(), versions, None);
                }
                if let Some(ask) = waiting.pop_front() {
                    answer(cx, &ask, Ok(Some(version)));
                    self.done(Some(ask));
                }
                self.work(cx, id, waiting, 0, now);
            }
            (Ok(_), _) => {
                self.forget(&id);
                self.work(cx, id, waiting, tries, now);
            }
            (Err(text), _) => {
                // Whether it was stored is not known.
                self.forget(&id);
                self.fail(cx, waiting, ServerError::MetadataError, &text);
            }
        }
    }

    fn fail(&mut self, cx: &mut Context, waiting: VecDeque<Ask>, error: ServerError, text: &str) {
        for ask in waiting {
            answer(cx, &ask, Err((error, text.to_owned())));
            self.done(Some(ask));
        }
    }

    /// A key of the store was changed, by this core or by anybody.
    pub(in crate::engine) fn changed(&mut self, key: &str, value: Option<&Bytes>) {
        if !key.starts_with(SCHEMA) {
            return;
        }
        let Some(id) = SchemaId::from_key(key) else {
            return;
        };
        if let Some(Busy {
            state: State::Reading { stale },
            ..
        }) = self.busy.get_mut(&id)
        {
            *stale = true;
        }
        if self.known.contains_key(&id) {
            let value = value.cloned().unwrap_or_default();
            match Versions::read(value) {
                Ok(versions) => self.keep(id, versions, None),
                Err(_) => self.forget(&id),
            }
        }
    }

    fn keep(&mut self, id: SchemaId, versions: Versions, stored: Option<u64>) {
        self.forget(&id);
        let size = versions.size() + 2 * id.as_str().len();
        self.kept += size;
        let used = self.clock;
        self.known.insert(
            id,
            Known {
                versions,
                stored,
                size,
                used,
            },
        );
    }

    fn forget(&mut self, id: &SchemaId) {
        if let Some(gone) = self.known.remove(id) {
            self.kept = self.kept.saturating_sub(gone.size);
        }
    }

    /// Lets go of what was not asked for lately, half of it at a time.
    fn shrink(&mut self) {
        if self.kept <= MAX_KEPT {
            return;
        }
        let mut by_use: Vec<(u64, SchemaId)> = self
            .known
            .iter()
            .map(|(id, known)| (known.used, id.clone()))
            .collect();
        by_use.sort_unstable();
        for (_, id) in by_use {
            if self.kept <= MAX_KEPT / 2 {
                break;
            }
            self.forget(&id);
        }
    }
}

/// Decides a question.
fn step(cx: &Context, ask: &Ask, versions: &Versions, now: Now) -> Step {
    let policy = policy(cx, &ask.id);
    let refused = |error: SchemaError| {
        Step::Answer(Err((ServerError::IncompatibleSchema, error.to_string())))
    };
    let bring = |schema: &Schema| {
        // What is there already needs no copy of all versions.
        if schema.validate().is_ok()
            && let Some(version) = versions.find(schema)
        {
            return Step::Answer(Ok(Some(version)));
        }
        let mut versions = versions.clone();
        match versions.bring(schema.clone(), policy, now.wall_ms) {
            Ok(Put::Exists(version)) => Step::Answer(Ok(Some(version))),
            Ok(Put::Added(version)) => Step::Store(versions, version),
            Err(error) => refused(error),
        }
    };
    match &ask.question {
        Question::Get(version) => {
            let found = match version {
                Some(version) => versions.get(*version),
                None => versions.latest(),
            };
            match found {
                Some(found) => {
                    let schema = Box::new(found.schema.to_wire(&ask.id));
                    Step::Schema(schema, found.version)
                }
                None => {
                    let which =
                        version.map_or(String::new(), |v| format!(" of version {}", v as i64));
                    let text = format!("Topic {} has no schema{which}", ask.id);
                    Step::Answer(Err((ServerError::TopicNotFound, text)))
                }
            }
        }
        Question::Bring(schema) => bring(schema),
        Question::Consume { schema, idle } if *idle && versions.latest().is_none() => bring(schema),
        Question::Consume { schema, .. } => match versions.check_consumer(schema, policy) {
            Ok(()) => Step::Answer(Ok(None)),
            Err(error) => refused(error),
        },
        Question::Plain if policy.enforced && versions.latest().is_some() => {
            let text = format!(
                "Topic {} has a schema and its namespace has schemaValidationEnforced: producers need a schema",
                ask.id
            );
            Step::Answer(Err((ServerError::IncompatibleSchema, text)))
        }
        Question::Plain => Step::Answer(Ok(None)),
    }
}

/// What settings and policies say about the schemas of an id.
pub(in crate::engine) fn policy(cx: &Context, id: &SchemaId) -> SchemaPolicy {
    let strategy = cx.settings.schema_compatibility_strategy;
    cx.metadata.schema_rules(id).or(strategy)
}

/// Answers whoever asked.
fn answer(cx: &mut Context, ask: &Ask, decided: Decided) {
    match ask.asker {
        Asker::Opening { core, client } => {
            cx.post(core, Message::SchemaDecided { client, decided });
        }
        Asker::Session {
            session,
            request_id,
        } => {
            let command = match &ask.question {
                Question::Get(_) => got(request_id, None, decided.err()),
                _ => got_or_created(request_id, decided),
            };
            let command = Box::new(command);
            cx.post(session.core, Message::SchemaAnswer { session, command });
        }
    }
}

fn answer_schema(cx: &mut Context, ask: &Ask, schema: proto::Schema, version: u64) {
    let Asker::Session {
        session,
        request_id,
    } = ask.asker
    else {
        return;
    };
    let command = Box::new(got(request_id, Some((schema, version)), None));
    cx.post(session.core, Message::SchemaAnswer { session, command });
}

/// GET_SCHEMA_RESPONSE.
pub(in crate::engine) fn got(
    request_id: u64,
    schema: Option<(proto::Schema, u64)>,
    error: Option<(ServerError, String)>,
) -> BaseCommand {
    let (error, text) = error.unzip();
    let (schema, version) = schema.unzip();
    BaseCommand {
        get_schema_response: Some(proto::CommandGetSchemaResponse {
            request_id,
            error_code: error.map(|error| error as i32),
            error_message: text,
            schema,
            schema_version: version.map(version_bytes),
        }),
        ..reply::base(Type::GetSchemaResponse)
    }
}

/// GET_OR_CREATE_SCHEMA_RESPONSE.
pub(in crate::engine) fn got_or_created(request_id: u64, decided: Decided) -> BaseCommand {
    let (version, error) = match decided {
        Ok(version) => (version, None),
        Err(error) => (None, Some(error)),
    };
    let (error, text) = error.unzip();
    BaseCommand {
        get_or_create_schema_response: Some(proto::CommandGetOrCreateSchemaResponse {
            request_id,
            error_code: error.map(|error| error as i32),
            error_message: text,
            schema_version: version.map(version_bytes),
        }),
        ..reply::base(Type::GetOrCreateSchemaResponse)
    }
}

/// The version that GET_SCHEMA names: `Ok(None)` = the newest, `Err(true)` = empty bytes, `Err(false)` = bytes that are none.
pub(in crate::engine) fn asked_version(bytes: Option<&Bytes>) -> Result<Option<u64>, bool> {
    match bytes {
        None => Ok(None),
        Some(bytes) if bytes.is_empty() => Err(true),
        Some(bytes) => read_version(bytes).map(Some).ok_or(false),
    }
}
