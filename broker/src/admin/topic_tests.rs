//! Topics and subscriptions over HTTP, with an engine behind it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::tests::{Core, Http};
use serde_json::Value;
use std::time::Duration;

const TOPIC: &str = "/admin/v2/persistent/t/n/x";

fn http() -> Http {
    let http = Http::new();
    // The namespace t/n is there; its tenant and the engine's view of it come by these.
    http.is_status("PUT", "/admin/v2/clusters/standalone", "{}", 200);
    http.is_status(
        "PUT",
        "/admin/v2/tenants/t",
        r#"{"allowedClusters":["standalone"]}"#,
        204,
    );
    http
}

impl Http {
    fn is_status(&self, method: &str, path: &str, body: &str, status: u16) -> String {
        let got = match body {
            "" => self.call(method, path, "", ""),
            body => self.json(method, path, body),
        };
        assert_eq!(got.status, status, "{method} {path}: {}", got.body);
        got.body
    }

    fn value(&self, path: &str) -> Value {
        serde_json::from_str(&self.is_status("GET", path, "", 200)).unwrap()
    }
}

#[test]
fn a_topic_is_made_listed_and_deleted_once() {
    let http = http();
    http.is_status("PUT", TOPIC, r#"{"a":"b"}"#, 204);
    let again = http.is_status("PUT", TOPIC, "", 409);
    assert_eq!(again, r#"{"reason":"This topic already exists"}"#);
    assert_eq!(
        http.value("/admin/v2/persistent/t/n"),
        serde_json::json!(["persistent://t/n/x"])
    );
    assert_eq!(
        http.value(&format!("{TOPIC}/properties")),
        serde_json::json!({"a": "b"})
    );
    http.is_status("DELETE", &format!("{TOPIC}/properties?key=a"), "", 204);
    assert_eq!(
        http.value(&format!("{TOPIC}/properties")),
        serde_json::json!({})
    );
    http.is_status("DELETE", TOPIC, "", 204);
    http.is_status("DELETE", TOPIC, "", 404);
    http.is_status("GET", &format!("{TOPIC}/stats"), "", 404);
    // The name is free again, and nothing of the old topic comes back.
    http.is_status("PUT", TOPIC, "", 204);
    assert_eq!(
        http.value(&format!("{TOPIC}/properties")),
        serde_json::json!({})
    );
}

#[test]
fn partitions_grow_and_go_together() {
    let http = http();
    let partitions = format!("{TOPIC}/partitions");
    http.is_status("PUT", &partitions, "3", 204);
    http.is_status("PUT", TOPIC, "", 409);
    http.is_status("PUT", &partitions, "3", 409);
    http.is_status("PUT", "/admin/v2/persistent/t/n/y/partitions", "10001", 406);
    http.is_status("POST", &partitions, "2", 422);
    http.is_status("POST", &partitions, "5", 204);
    assert_eq!(http.value(&partitions)["partitions"], 5);
    assert_eq!(
        http.value("/admin/v2/persistent/t/n")
            .as_array()
            .unwrap()
            .len(),
        5
    );
    assert_eq!(
        http.value("/admin/v2/namespaces/t/n/topics")
            .as_array()
            .unwrap()
            .len(),
        5
    );
    let stats = http.value(&format!("{TOPIC}/partitioned-stats"));
    assert_eq!(stats["partitions"].as_object().unwrap().len(), 5);
    http.is_status("DELETE", TOPIC, "", 409);
    http.is_status("DELETE", "/admin/v2/namespaces/t/n", "", 409);
    http.is_status("DELETE", &partitions, "", 204);
    http.is_status("DELETE", &partitions, "", 404);
    assert_eq!(
        http.value("/admin/v2/persistent/t/n"),
        serde_json::json!([])
    );
    http.is_status("DELETE", "/admin/v2/namespaces/t/n", "", 204);
    http.is_status("GET", "/admin/v2/persistent/t/n", "", 404);
}

#[test]
fn subscriptions_are_made_moved_and_deleted() {
    let http = http();
    let sub = format!("{TOPIC}/subscription/s");
    http.is_status("PUT", TOPIC, "", 204);
    http.is_status("PUT", &sub, r#""earliest""#, 204);
    http.is_status("PUT", &sub, r#""earliest""#, 409);
    http.is_status(
        "PUT",
        &format!("{TOPIC}/subscription/u"),
        r#""nosuch""#,
        400,
    );
    for path in ["skip_all", "skip/3", "resetcursor/0"] {
        http.is_status("POST", &format!("{sub}/{path}"), "", 204);
        http.is_status(
            "POST",
            &format!("{TOPIC}/subscription/none/{path}"),
            "",
            404,
        );
    }
    http.is_status(
        "POST",
        &format!("{sub}/resetcursor"),
        r#"{"ledgerId":9,"entryId":9}"#,
        204,
    );
    http.is_status("POST", &format!("{sub}/expireMessages/1"), "", 409);
    http.is_status("GET", &format!("{sub}/position/1"), "", 404);
    http.is_status("GET", &format!("{sub}/position/0"), "", 500);
    http.is_status("GET", &format!("{sub}/position/x"), "", 404);
    assert_eq!(
        http.value(&format!("{TOPIC}/subscriptions")),
        serde_json::json!(["s"])
    );
    http.is_status("DELETE", &sub, "", 204);
    http.is_status("DELETE", &sub, "", 404);
}

#[test]
fn a_topic_ends_once_and_for_all() {
    let http = http();
    http.is_status("POST", &format!("{TOPIC}/terminate"), "", 404);
    http.is_status("PUT", TOPIC, "", 204);
    let first = http.is_status("POST", &format!("{TOPIC}/terminate"), "", 200);
    assert_eq!(
        http.is_status("POST", &format!("{TOPIC}/terminate"), "", 200),
        first
    );
    let internal = http.value(&format!("{TOPIC}/internalStats"));
    assert_eq!(internal["state"], "Terminated");
    http.is_status("POST", "/admin/v2/non-persistent/t/n/x/terminate", "", 406);
}

#[test]
fn schemas_get_versions() {
    let http = http();
    let at = |path: &str| format!("/admin/v2/schemas/t/n/x/{path}");
    let record = |fields: &str| {
        let schema = format!(r#"{{"type":"record","name":"R","fields":[{fields}]}}"#);
        serde_json::json!({"type": "AVRO", "schema": schema, "properties": {"p": "q"}}).to_string()
    };
    let first = record(r#"{"name":"a","type":"string"}"#);
    let wrong = record(r#"{"name":"a","type":"int"}"#);
    http.is_status("GET", &at("schema"), "", 404);
    for _ in 0..2 {
        let body = http.is_status("POST", &at("schema"), &first, 200);
        assert_eq!(body, r#"{"version":{"version":0}}"#);
    }
    http.is_status("POST", &at("schema"), &wrong, 409);
    http.is_status("POST", &at("compatibility"), &first, 202);
    http.is_status("POST", &at("compatibility"), &wrong, 500);
    http.is_status(
        "POST",
        &at("schema"),
        r#"{"type":"AVRO","schema":"no"}"#,
        422,
    );
    http.is_status(
        "POST",
        &at("schema"),
        r#"{"type":"NOSUCH","schema":""}"#,
        500,
    );
    assert_eq!(http.value(&at("schema/0"))["properties"]["p"], "q");
    assert_eq!(
        http.is_status("POST", &at("version"), &wrong, 200),
        r#"{"version":-1}"#
    );
    assert_eq!(
        http.is_status("DELETE", &at("schema"), "", 200),
        r#"{"version":1}"#
    );
    http.is_status("GET", &at("schema"), "", 404);
}

/// `BYTES` may begin a topic's schemas and never follow one, as Pulsar has it; `NONE` may.
#[test]
fn plain_bytes_are_uploaded_once() {
    let http = http();
    let at = |path: &str| format!("/admin/v2/schemas/t/n/x/{path}");
    let of = |kind: &str, text: &str| {
        serde_json::json!({"type": kind, "schema": text, "properties": {}}).to_string()
    };
    http.is_status("POST", &at("compatibility"), &of("BYTES", ""), 202);
    http.is_status("POST", &at("schema"), &of("BYTES", ""), 200);
    for text in ["", "other"] {
        let body = http.is_status("POST", &at("schema"), &of("BYTES", text), 409);
        assert!(
            body.contains("exists schema type NONE, new schema type BYTES"),
            "{body}"
        );
        http.is_status("POST", &at("compatibility"), &of("BYTES", text), 500);
    }
    assert_eq!(
        http.value(&at("schemas"))["getSchemaResponses"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    http.is_status("POST", &at("schema"), &of("NONE", ""), 200);
    // Deleted is gone: it may begin again.
    http.is_status("DELETE", &at("schema"), "", 200);
    http.is_status("POST", &at("schema"), &of("BYTES", ""), 200);
}

#[test]
fn filters_that_are_not_there_are_refused() {
    let http = http();
    let path = "/admin/v2/namespaces/t/n/entryFilters";
    let body = http.is_status("POST", path, r#"{"entryFilterNames":"one,two"}"#, 400);
    assert!(body.contains("'one'"), "{body}");
    http.is_status("POST", path, r#"{"entryFilterNames":" , "}"#, 400);
    assert_eq!(http.is_status("GET", path, "", 200), "");
    http.is_status("DELETE", path, "", 204);
}

#[test]
fn a_core_that_does_not_answer_is_told_of() {
    let http = Http::with(Duration::from_millis(50));
    for does in [Core::Hangs, Core::Full, Core::DiskHangs] {
        *http.fake.core.lock().unwrap() = does;
        let body = http.is_status("PUT", TOPIC, "", 504);
        assert!(body.contains("Core 0 did not answer"), "{body}");
    }
    *http.fake.core.lock().unwrap() = Core::Answers;
    http.is_status("GET", "/admin/v2/persistent/t/n", "", 200);
}

#[test]
fn bodies_are_bounded_and_deep_ones_refused() {
    let http = http();
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(2 << 20));
    assert_eq!(http.json("PUT", TOPIC, &large).status, 413);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    http.is_status("PUT", TOPIC, &deep, 400);
}

#[test]
fn what_is_not_served_says_so() {
    let http = http();
    let got = http.get("/admin/v2/broker-stats/mbeans");
    assert_eq!(got.status, 501);
    assert!(
        got.body.contains("not served by this version"),
        "{}",
        got.body
    );
    assert_eq!(
        http.call("PATCH", "/admin/v2/tenants/t", "", "").status,
        405
    );
    assert_eq!(http.get("/admin/v2/nosuch").status, 404);
}

/// What clients may not make, HTTP does not make either.
#[test]
fn names_and_properties_are_bounded() {
    let http = http();
    http.is_status("PUT", TOPIC, "", 204);
    let sub = |length: usize| format!("{TOPIC}/subscription/{}", "s".repeat(length));
    http.is_status("PUT", &sub(4096), r#""latest""#, 204);
    http.is_status("PUT", &sub(4097), r#""latest""#, 412);
    http.is_status("GET", &format!("{}/position/1", sub(4097)), "", 412);
    let with = |length: usize| {
        let value = "v".repeat(length);
        format!(r#"{{"ledgerId":-1,"entryId":-1,"properties":{{"k":"{value}"}}}}"#)
    };
    http.is_status("PUT", &sub(1), &with(65_535), 204);
    http.is_status("PUT", &sub(2), &with(65_536), 412);
    let properties = format!("{TOPIC}/properties");
    let value = "v".repeat(600_000);
    http.is_status("PUT", &properties, &format!(r#"{{"a":"{value}"}}"#), 204);
    http.is_status("PUT", &properties, &format!(r#"{{"b":"{value}"}}"#), 413);
    // The same again is no more than there was.
    http.is_status("PUT", &properties, &format!(r#"{{"a":"{value}"}}"#), 204);
    http.is_status("DELETE", &format!("{properties}?key=a"), "", 204);
    http.is_status("PUT", &properties, &format!(r#"{{"b":"{value}"}}"#), 204);
}

#[test]
fn a_topic_has_policies_of_its_own() {
    let http = http();
    let at = |policy: &str| format!("{TOPIC}/{policy}");
    http.is_status("GET", &at("maxProducers"), "", 404);
    http.is_status("POST", &at("maxProducers"), "5", 404);
    http.is_status("PUT", TOPIC, "", 204);
    let policies = [
        (
            "publishRate",
            204,
            r#"{"publishThrottlingRateInMsg":1000,"publishThrottlingRateInByte":-1}"#,
        ),
        ("deduplicationEnabled", 200, "true"),
        (
            "delayedDelivery",
            200,
            r#"{"active":true,"maxDeliveryDelayInMillis":0,"tickTime":1000}"#,
        ),
        (
            "inactiveTopicPolicies",
            200,
            r#"{"inactiveTopicDeleteMode":"delete_when_no_subscriptions","maxInactiveDurationSeconds":600,"deleteWhileInactive":true}"#,
        ),
        ("maxProducers", 200, "100"),
        ("maxConsumers", 200, "100"),
        ("maxConsumersPerSubscription", 204, "100"),
        ("maxSubscriptionsPerTopic", 204, "100"),
        ("maxMessageSize", 204, "100"),
        (
            "autoSubscriptionCreation",
            200,
            r#"{"allowAutoSubscriptionCreation":true}"#,
        ),
    ];
    for (policy, unset, body) in policies {
        assert_eq!(http.is_status("GET", &at(policy), "", unset), "");
        http.is_status("POST", &at(policy), body, 204);
        let stored = http.value(&at(policy));
        assert_eq!(stored, serde_json::from_str::<Value>(body).unwrap());
        http.is_status("DELETE", &at(policy), "", 204);
        assert_eq!(http.is_status("GET", &at(policy), "", unset), "");
        http.is_status("DELETE", &at(policy), "", 204);
    }
    http.is_status("POST", &at("maxProducers"), "-1", 412);
    http.is_status("POST", &at("maxMessageSize"), "99999999", 412);
    http.is_status("POST", &at("maxMessageSize"), "-1", 412);
    http.is_status(
        "PUT",
        &at("schemaCompatibilityStrategy"),
        r#""BACKWARD""#,
        204,
    );
    assert_eq!(http.value(&at("schemaCompatibilityStrategy")), "BACKWARD");
    assert_eq!(http.value(&at("schemaValidationEnforced")), false);
    assert_eq!(
        http.value(&at("subscriptionTypesEnabled")),
        serde_json::json!([])
    );
    http.is_status(
        "POST",
        &at("subscriptionTypesEnabled"),
        r#"["Shared","Exclusive"]"#,
        204,
    );
    assert_eq!(
        http.value(&at("subscriptionTypesEnabled")),
        serde_json::json!(["Exclusive", "Shared"])
    );
    http.is_status("DELETE", &at("policies"), "", 204);
    assert_eq!(
        http.is_status("GET", &at("schemaCompatibilityStrategy"), "", 200),
        ""
    );
    // What nothing goes by yet.
    for policy in ["retention", "compactionThreshold", "persistence"] {
        http.is_status("POST", &at(policy), "1", 501);
        http.is_status("GET", &at(policy), "", 501);
    }
}

#[test]
fn what_counts_is_the_topics_word_then_the_namespaces_then_the_brokers() {
    let http = http();
    let at = |policy: &str| format!("{TOPIC}/{policy}?applied=true");
    http.is_status("PUT", TOPIC, "", 204);
    assert_eq!(http.value(&at("maxConsumers")), 0);
    assert_eq!(http.value(&at("deduplicationEnabled")), false);
    assert_eq!(http.value(&at("schemaCompatibilityStrategy")), "FULL");
    assert_eq!(
        http.value(&at("delayedDelivery")),
        serde_json::json!({"tickTime": 1000, "active": true, "maxDeliveryDelayInMillis": 0})
    );
    assert_eq!(
        http.value(&at("inactiveTopicPolicies")),
        serde_json::json!({
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60, "deleteWhileInactive": true,
        })
    );
    for policy in ["publishRate", "maxMessageSize", "maxSubscriptionsPerTopic"] {
        http.is_status("GET", &at(policy), "", 204);
    }
    let namespace = "/admin/v2/namespaces/t/n/maxConsumersPerTopic";
    http.is_status("POST", namespace, "7", 204);
    assert_eq!(http.value(&at("maxConsumers")), 7);
    http.is_status("POST", &format!("{TOPIC}/maxConsumers"), "3", 204);
    assert_eq!(http.value(&at("maxConsumers")), 3);
    assert_eq!(http.value(&format!("{TOPIC}/maxConsumers")), 3);
}

/// Partitions have the policies of their topic; they go with it, whether it is one topic or many.
#[test]
fn policies_and_schemas_go_with_their_topic() {
    let http = http();
    let schema = r#"{"type":"STRING","schema":"","properties":{}}"#;
    let schemas = "/admin/v2/schemas/t/n/x/schema";
    let partitions = format!("{TOPIC}/partitions");
    for (make, body, delete, topic) in [
        (TOPIC, "", TOPIC, TOPIC.to_owned()),
        (
            &*partitions,
            "2",
            &*partitions,
            format!("{TOPIC}-partition-1"),
        ),
    ] {
        http.is_status("PUT", make, body, 204);
        http.is_status("POST", &format!("{topic}/maxProducers"), "9", 204);
        assert_eq!(http.value(&format!("{TOPIC}/maxProducers")), 9);
        http.is_status("POST", schemas, schema, 200);
        http.is_status("DELETE", delete, "", 204);
        http.is_status("GET", schemas, "", 404);
        http.is_status("PUT", make, body, 204);
        assert_eq!(
            http.is_status("GET", &format!("{TOPIC}/maxProducers"), "", 200),
            ""
        );
        http.is_status("DELETE", delete, "", 204);
    }
    // A schema may be there before its topic.
    http.is_status("POST", schemas, schema, 200);
    http.is_status("DELETE", "/admin/v2/namespaces/t/n", "", 204);
    http.is_status("PUT", "/admin/v2/namespaces/t/n", "", 204);
    http.is_status("GET", schemas, "", 404);
}

#[test]
fn a_namespace_has_no_more_topics_than_it_may() {
    let http = http();
    let at = |topic: &str| format!("/admin/v2/persistent/t/n/{topic}");
    http.is_status(
        "POST",
        "/admin/v2/namespaces/t/n/maxTopicsPerNamespace",
        "2",
        204,
    );
    http.is_status("PUT", &at("p/partitions"), "3", 412);
    http.is_status("PUT", &at("p/partitions"), "2", 204);
    http.is_status("PUT", &at("p/partitions"), "2", 409);
    let body = http.is_status("PUT", &at("x"), "", 409);
    assert!(
        body.contains("Exceed maximum number of topics in namespace."),
        "{body}"
    );
    http.is_status("PUT", "/admin/v2/non-persistent/t/n/x", "", 204);
    http.is_status("PUT", "/admin/v2/non-persistent/t/n/y/partitions", "3", 412);
    http.is_status("DELETE", &at("p/partitions"), "", 204);
    http.is_status("PUT", &at("x"), "", 204);
}

/// The broker ended after the first of three partitions: the next start makes the others, and so does whoever asks again.
#[test]
fn partitions_that_were_left_unmade_are_made() {
    let http = http();
    let key = "partitioned/persistent/t/n/x";
    let value = r#"{"partitions":3,"properties":{"a":"b"},"unfinished":true}"#;
    let topics = || {
        http.value("/admin/v2/persistent/t/n")
            .as_array()
            .unwrap()
            .len()
    };
    http.put_metadata(key, value);
    http.is_status("PUT", &format!("{TOPIC}-partition-0"), "", 204);
    http.is_status(
        "PUT",
        &format!("{TOPIC}-partition-0/subscription/s"),
        "",
        204,
    );
    assert_eq!(topics(), 1);
    http.is_status("PUT", &format!("{TOPIC}/partitions"), "3", 409);
    assert_eq!(topics(), 3);
    assert_eq!(
        http.value(&format!("{TOPIC}-partition-2/subscriptions")),
        serde_json::json!(["s"])
    );
    assert_eq!(http.value(&format!("{TOPIC}/properties"))["a"], "b");
    http.is_status("DELETE", &format!("{TOPIC}-partition-2"), "", 204);
    http.put_metadata(key, value);
    let again = http.again();
    again.until(|| topics() == 3);
}
