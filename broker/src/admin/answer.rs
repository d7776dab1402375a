//! Answers as Apache Pulsar's web service gives them: JSON, `{"reason":...}`, and the pages for what no resource answers.

use super::api;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The answer of a request that could not be done.
pub(super) struct Refusal(Box<Response>);

impl From<Response> for Refusal {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `{"reason":"..."}` with an error status.
pub(super) fn reason(status: StatusCode, reason: &str) -> Response {
    let text = json!({ "reason": reason }).to_string();
    (status, [(header::CONTENT_TYPE, JSON)], text).into_response()
}

/// 500 in the form that clients of Pulsar know.
pub(super) fn internal(message: &str) -> Response {
    reason(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!(
            "\n --- An unexpected error occurred in the server ---\n\nMessage: {message}\n\nStacktrace:\n\n"
        ),
    )
}

/// 200 with a JSON value. `null` is an empty body without a type, as Pulsar's web service has it.
pub(super) fn value(value: &Value) -> Response {
    if value.is_null() {
        return StatusCode::OK.into_response();
    }
    text(value.to_string())
}

/// 200 with a bare text, which Pulsar labels JSON all the same.
pub(super) fn text(text: String) -> Response {
    ([(header::CONTENT_TYPE, JSON)], text).into_response()
}

/// The body as JSON; `null` if there is none.
///
/// # Errors
/// The answer to give: 415 if it is declared as something else, 400 if it is no JSON.
pub(super) fn body(headers: &HeaderMap, bytes: &[u8]) -> Result<Value, Refusal> {
    let declared = headers
        .get(header::CONTENT_TYPE)
        .map(|kind| kind.to_str().unwrap_or_default());
    let is_json = declared.is_some_and(|kind| {
        kind.split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    });
    if !(is_json || declared.is_none() && bytes.is_empty()) {
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response().into());
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| malformed(&error.to_string()).into())
}

/// 400 with what is wrong with a body.
pub(super) fn malformed(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, message.to_owned()).into_response()
}

/// 412 with a reason.
pub(super) fn failed(text: &str) -> Refusal {
    reason(StatusCode::PRECONDITION_FAILED, text).into()
}

/// Names that Pulsar gives tenants, namespaces and the like.
pub(super) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_=:.".contains(c);
    !name.is_empty() && name.len() <= 1024 && name.chars().all(allowed)
}

/// A whole number of a body.
///
/// # Errors
/// 400 if it is none; text of one is taken, as in Pulsar.
pub(super) fn integer(value: &Value, what: &str) -> Result<i64, Refusal> {
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| malformed(&format!("{what} must be a whole number, not {value}")).into())
}

/// A boolean of a body; a number is true unless it is 0, as in Pulsar.
///
/// # Errors
/// 400 if it is none.
pub(super) fn boolean(value: &Value, what: &str) -> Result<bool, Refusal> {
    let truth = match value {
        Value::Bool(truth) => Some(*truth),
        Value::Number(number) => Some(number.as_f64() != Some(0.0)),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    };
    truth.ok_or_else(|| malformed(&format!("{what} must be true or false, not {value}")).into())
}

/// A list of texts of a body; `null` is an empty one.
///
/// # Errors
/// 400 if it is none.
pub(super) fn strings(value: &Value, what: &str) -> Result<Vec<String>, Refusal> {
    let wrong = || malformed(&format!("{what} must be a list of texts, not {value}"));
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err(wrong().into()),
    };
    let text = |item: &Value| item.as_str().map(str::to_owned);
    let texts: Option<Vec<String>> = list.iter().map(text).collect();
    Ok(texts.ok_or_else(wrong)?)
}

/// Named texts of a body; `null` is none.
///
/// # Errors
/// 400 if it is something else.
pub(super) fn string_map(value: &Value) -> Result<BTreeMap<String, String>, Refusal> {
    let wrong = || malformed("properties must be a JSON object of texts");
    let fields = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(fields) => fields,
        _ => return Err(wrong().into()),
    };
    let mut map = BTreeMap::new();
    for (key, value) in fields {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return Err(wrong().into()),
        };
        map.insert(key.clone(), text);
    }
    Ok(map)
}

/// An error without a reason: it gets a page.
pub(super) fn bare(status: StatusCode) -> Response {
    status.into_response()
}

/// What the page of an error says.
#[derive(Clone)]
struct Says(String);

/// An error that gets a page, with something to say.
pub(super) fn page_of(status: StatusCode, message: &str) -> Response {
    let mut response = status.into_response();
    response.extensions_mut().insert(Says(message.to_owned()));
    response
}

/// No resource answered.
#[derive(Clone)]
struct Unrouted;

/// The answer of a path that is not served.
pub(super) async fn unrouted() -> Response {
    let mut response = StatusCode::NOT_FOUND.into_response();
    response.extensions_mut().insert(Unrouted);
    response
}

fn not_served(method: &Method, path: &str) -> Response {
    reason(
        StatusCode::NOT_IMPLEMENTED,
        &format!("{method} {path} is not served by this version of Vela"),
    )
}

/// Around all resources: a path with and without a slash at its end is the same, OPTIONS is answered, and what no
/// resource answered gets a page in a form that the client accepts.
pub(super) async fn framework(mut request: Request, next: Next) -> Response {
    trim_slash(&mut request);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let accept = accepted(request.headers());
    let host = request.headers().get(header::HOST).cloned();
    let url = format!(
        "http://{}{}",
        host.as_ref()
            .and_then(|host| host.to_str().ok())
            .unwrap_or("localhost"),
        request.uri()
    );
    let mut response = next.run(request).await;
    let status = response.status();
    let bare = !response.headers().contains_key(header::CONTENT_TYPE);
    let unrouted = response.extensions().get::<Unrouted>().is_some();
    if unrouted || bare && status == StatusCode::METHOD_NOT_ALLOWED {
        if api::knows(&method, &path) {
            return not_served(&method, &path);
        }
        if unrouted && let Some(methods) = api::methods(&path) {
            let allow = HeaderValue::from_str(&methods).ok();
            response = StatusCode::METHOD_NOT_ALLOWED.into_response();
            response
                .headers_mut()
                .extend(allow.map(|allow| (header::ALLOW, allow)));
        }
    }
    let status = response.status();
    if bare && status == StatusCode::METHOD_NOT_ALLOWED {
        return not_allowed(response, &method, &accept, &url);
    }
    if status == StatusCode::OK
        && matches!(method, Method::GET | Method::HEAD)
        && response.headers().get(header::CONTENT_TYPE) == Some(&JSON)
        && !accept.takes("application/json")
    {
        response = StatusCode::NOT_ACCEPTABLE.into_response();
    }
    let bare = !response.headers().contains_key(header::CONTENT_TYPE);
    let status = response.status();
    if bare && (status.is_client_error() || status.is_server_error()) {
        let says = response
            .extensions()
            .get::<Says>()
            .map(|says| says.0.clone());
        return page(status, says.as_deref(), &method, &accept, &url);
    }
    response
}

fn trim_slash(request: &mut Request) {
    let uri = request.uri();
    let path = uri.path();
    if path.len() < 2 || !path.ends_with('/') {
        return;
    }
    let mut short = path.trim_end_matches('/').to_owned();
    if short.is_empty() {
        short.push('/');
    }
    if let Some(query) = uri.query() {
        short.push('?');
        short.push_str(query);
    }
    if let Ok(uri) = short.parse() {
        *request.uri_mut() = uri;
    }
}

/// What the client says it accepts, without its preferences.
struct Accept(Option<String>);

fn accepted(headers: &HeaderMap) -> Accept {
    Accept(
        headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .map(str::to_ascii_lowercase),
    )
}

impl Accept {
    fn takes(&self, kind: &str) -> bool {
        let Some(accept) = &self.0 else {
            return true;
        };
        let group = kind.split('/').next().unwrap_or_default();
        accept.split(',').any(|each| {
            let each = each.split(';').next().unwrap_or_default().trim();
            each == "*/*" || each == kind || each.strip_suffix("/*") == Some(group)
        })
    }

    fn wants_json(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|accept| accept.contains("application/json"))
    }
}

/// 405 names the methods there are; OPTIONS asks for just that.
fn not_allowed(response: Response, method: &Method, accept: &Accept, url: &str) -> Response {
    let allow = response
        .headers()
        .get(header::ALLOW)
        .and_then(|allow| allow.to_str().ok())
        .unwrap_or_default();
    let mut methods: Vec<&str> = allow
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    methods.push("OPTIONS");
    if method == Method::OPTIONS {
        let list = methods.join(", ");
        let kind = HeaderValue::from_static("text/plain");
        let mut answer = ([(header::CONTENT_TYPE, kind)], list).into_response();
        set_allow(&mut answer, &methods);
        return answer;
    }
    methods.retain(|name| *name != "HEAD");
    let mut answer = page(StatusCode::METHOD_NOT_ALLOWED, None, method, accept, url);
    set_allow(&mut answer, &methods);
    answer
}

fn set_allow(response: &mut Response, methods: &[&str]) {
    if let Ok(allow) = HeaderValue::from_str(&methods.join(",")) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
}

/// The page of an error that no resource gave. Only reading methods and POST get one.
fn page(
    status: StatusCode,
    says: Option<&str>,
    method: &Method,
    accept: &Accept,
    url: &str,
) -> Response {
    if !matches!(*method, Method::GET | Method::HEAD | Method::POST) {
        return status.into_response();
    }
    let message = says.or(status.canonical_reason()).unwrap_or("Error");
    let code = status.as_u16();
    if accept.wants_json() {
        let text = json!({ "message": message, "url": url, "status": code.to_string() });
        return (status, [(header::CONTENT_TYPE, JSON)], text.to_string()).into_response();
    }
    if !accept.takes("text/html") {
        if !accept.takes("text/plain") {
            return status.into_response();
        }
        let text = format!(
            "HTTP ERROR {code} {message}\nURI: {url}\nSTATUS: {code}\nMESSAGE: {message}\n"
        );
        return (status, text).into_response();
    }
    let escape = |text: &str| {
        let text = text.replace('&', "&amp;");
        text.replace('<', "&lt;").replace('>', "&gt;")
    };
    let (url, message) = (escape(url), escape(message));
    let html = format!(
        "<html>\n<head>\n<title>Error {code} {message}</title>\n</head>\n<body>\n<h2>HTTP ERROR {code} {message}</h2>\n\
         <table>\n<tr><th>URI:</th><td>{url}</td></tr>\n</table>\n</body>\n</html>\n"
    );
    let kind = HeaderValue::from_static("text/html;charset=utf-8");
    (status, [(header::CONTENT_TYPE, kind)], html).into_response()
}
