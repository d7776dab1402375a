//! `/admin/v2/schemas`: the schemas of topics. They are kept in the metadata store, where the cores find them too: a change is
//! conditional, so that two producers and two requests with the same new schema get one version.

use super::answer::{self, Refusal};
use super::params::Params;
use super::{Answer, Shared};
use crate::engine::metadata::TOPIC_POLICIES;
use crate::engine::name::TopicName;
use crate::engine::schema::{
    Put, Schema, SchemaError, SchemaId, SchemaRules, SchemaType, StoredSchema, Strategy, Versions,
};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often a change is decided anew because another came first.
const TRIES: usize = 8;

pub(super) fn routes() -> Router<Shared> {
    let topic = "/admin/v2/schemas/{tenant}/{namespace}/{topic}";
    let at = |path: &str| format!("{topic}/{path}");
    Router::new()
        .route(&at("schema"), get(newest).post(add).delete(remove))
        .route(&at("schema/{version}"), get(version))
        .route(&at("schemas"), get(all))
        .route(&at("metadata"), get(metadata))
        .route(&at("compatibility"), post(compatibility))
        .route(&at("version"), post(find))
}

type Parts = Path<HashMap<String, String>>;

/// What a path names, and what is stored of it.
struct Found {
    id: SchemaId,
    namespace: String,
    versions: Versions,
    /// The value's version in the store; 0: there is none.
    stored: u64,
}

impl Shared {
    async fn schema(&self, path: &HashMap<String, String>) -> Result<Found, Refusal> {
        let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
        let namespace = format!("{}/{}", part("tenant"), part("namespace"));
        let full = format!("persistent://{namespace}/{}", part("topic"));
        let name =
            TopicName::parse(&full).map_err(|_| answer::failed("Topic name is not valid"))?;
        let id = SchemaId::of(&name);
        let found = self.get(id.key()).await?;
        let stored = found.as_ref().map_or(0, |found| found.version);
        let versions = match found {
            Some(found) => {
                Versions::read(found.value).map_err(|error| answer::internal(&error.to_string()))?
            }
            None => Versions::default(),
        };
        Ok(Found {
            id,
            namespace,
            versions,
            stored,
        })
    }

    /// Removes all versions of a topic's schema, its numbers included.
    pub(super) async fn forget_schema(&self, name: &TopicName) -> Result<(), Refusal> {
        self.delete(SchemaId::of(name).key()).await?;
        Ok(())
    }

    /// What its topic says, else its namespace, else the broker.
    async fn strategy(&self, found: &Found) -> Result<Strategy, Refusal> {
        let key = format!("{TOPIC_POLICIES}persistent/{}", found.id.as_str());
        let own = self.policies_of_topic(key).await?;
        let own = own.get("schemaCompatibilityStrategy");
        if let Some(own) = own.and_then(Value::as_str).and_then(Strategy::from_name) {
            return Ok(own);
        }
        let stored = self.namespace(&found.namespace).await?.unwrap_or_default();
        let rules = SchemaRules::read(&Value::Object(stored));
        let default = self.settings().schema_compatibility_strategy;
        Ok(rules.or(default.into()).strategy)
    }
}

fn not_found() -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, "Schema not found").into()
}

fn shown(stored: &StoredSchema) -> Value {
    let properties = stored.schema.properties.iter();
    let properties: Map<String, Value> = properties
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    json!({
        "version": stored.version,
        "type": stored.schema.kind.name(),
        "timestamp": stored.added_ms,
        "data": String::from_utf8_lossy(&stored.schema.data),
        "properties": properties,
    })
}

async fn newest(State(shared): State<Shared>, Path(path): Parts) -> Answer {
    let found = shared.schema(&path).await?;
    let stored = found.versions.latest().ok_or_else(not_found)?;
    Ok(answer::value(&shown(stored)))
}

async fn version(State(shared): State<Shared>, Path(path): Parts) -> Answer {
    let text = path.get("version").map(String::as_str).unwrap_or_default();
    let Ok(number) = text.parse::<u64>() else {
        return Ok(answer::internal(&format!("For input string: \"{text}\"")));
    };
    let found = shared.schema(&path).await?;
    let stored = found.versions.get(number).ok_or_else(not_found)?;
    Ok(answer::value(&shown(stored)))
}

async fn all(State(shared): State<Shared>, Path(path): Parts) -> Answer {
    let found = shared.schema(&path).await?;
    let all: Vec<Value> = found.versions.all().iter().map(shown).collect();
    Ok(answer::value(&json!({ "getSchemaResponses": all })))
}

/// Where versions are kept. They have no ledgers here: the numbers of ledgers are those of the versions.
async fn metadata(State(shared): State<Shared>, Path(path): Parts) -> Answer {
    let found = shared.schema(&path).await?;
    let place = |stored: &StoredSchema| json!({ "ledgerId": stored.version, "entryId": 0, "version": stored.version });
    let info = place(found.versions.latest().ok_or_else(not_found)?);
    let index: Vec<Value> = found.versions.all().iter().map(place).collect();
    Ok(answer::value(&json!({ "info": info, "index": index })))
}

/// The schema of a body, and whether it calls itself `BYTES`.
///
/// Plain bytes have no type of their own in what is stored: there they are `NONE`. So a schema called `BYTES` can be a topic's first one and
/// never follows another, not even itself, as Pulsar has it.
struct Given {
    schema: Schema,
    bytes: bool,
}

impl Given {
    /// May it come next, as far as its name goes?
    fn check(&self, versions: &Versions, strategy: Strategy) -> Result<(), SchemaError> {
        match versions.latest() {
            Some(latest) if self.bytes && strategy != Strategy::AlwaysCompatible => {
                Err(SchemaError::Incompatible(format!(
                    "Incompatible schema: exists schema type {}, new schema type BYTES",
                    latest.schema.kind.name()
                )))
            }
            _ => Ok(()),
        }
    }
}

fn given(headers: &HeaderMap, bytes: &[u8]) -> Result<Given, Refusal> {
    let body = answer::body(headers, bytes)?;
    let kind = body.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some(data) = body.get("schema").and_then(Value::as_str) else {
        return Err(answer::internal("the body has no field \"schema\"").into());
    };
    let plain = kind == "BYTES";
    let Some(kind) = SchemaType::from_name(kind) else {
        return Err(answer::internal(&format!("{kind:?} is no type of schema")).into());
    };
    let properties = answer::string_map(body.get("properties").unwrap_or(&Value::Null))?;
    Ok(Given {
        schema: Schema {
            kind,
            data: Bytes::from(data.to_owned()),
            properties: properties.into_iter().collect(),
        },
        bytes: plain,
    })
}

/// A refused schema comes as a page, as in Pulsar.
fn refused(error: &SchemaError) -> Response {
    let status = match error {
        SchemaError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        SchemaError::Incompatible(_) => StatusCode::CONFLICT,
        SchemaError::TooMany(_) => {
            return answer::reason(StatusCode::PRECONDITION_FAILED, &error.to_string());
        }
    };
    answer::page_of(status, &error.to_string())
}

async fn add(
    State(shared): State<Shared>,
    Path(path): Parts,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let given = given(&headers, &bytes)?;
    for _ in 0..TRIES {
        let mut found = shared.schema(&path).await?;
        let strategy = shared.strategy(&found).await?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let fits = given.check(&found.versions, strategy);
        let put = fits.and_then(|()| found.versions.put(given.schema.clone(), strategy, now));
        let put = match put {
            Ok(put) => put,
            Err(error) => return Ok(refused(&error)),
        };
        let done = json!({ "version": { "version": put.version() } });
        if matches!(put, Put::Exists(_))
            || shared
                .put_bytes(found.id.key(), found.versions.write(), found.stored)
                .await?
        {
            return Ok(answer::value(&done));
        }
    }
    Ok(answer::reason(
        StatusCode::CONFLICT,
        "Concurrent modification",
    ))
}

async fn remove(State(shared): State<Shared>, Path(path): Parts, params: Params) -> Answer {
    for _ in 0..TRIES {
        let mut found = shared.schema(&path).await?;
        if params.flag("force") {
            shared.delete(found.id.key()).await?;
            return Ok(answer::value(&json!({ "version": -1 })));
        }
        let number = found.versions.delete();
        if shared
            .put_bytes(found.id.key(), found.versions.write(), found.stored)
            .await?
        {
            return Ok(answer::value(&json!({ "version": number })));
        }
    }
    Ok(answer::reason(
        StatusCode::CONFLICT,
        "Concurrent modification",
    ))
}

async fn compatibility(
    State(shared): State<Shared>,
    Path(path): Parts,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let given = given(&headers, &bytes)?;
    let found = shared.schema(&path).await?;
    let strategy = shared.strategy(&found).await?;
    let checked = given.schema.validate();
    let checked = checked.and_then(|()| given.check(&found.versions, strategy));
    match checked.and_then(|()| found.versions.check(&given.schema, strategy)) {
        Ok(()) => {
            let mut response = answer::value(&json!({
                "schemaCompatibilityStrategy": strategy.name(), "compatibility": true,
            }));
            *response.status_mut() = StatusCode::ACCEPTED;
            Ok(response)
        }
        Err(error) => Ok(answer::internal(&error.to_string())),
    }
}

/// -1 if no version is this schema.
async fn find(
    State(shared): State<Shared>,
    Path(path): Parts,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let schema = given(&headers, &bytes)?.schema;
    let found = shared.schema(&path).await?;
    let version = found.versions.find(&schema).map(Value::from);
    let version = version.unwrap_or_else(|| (-1).into());
    Ok(answer::value(&json!({ "version": version })))
}
