"""The admin API as scripts, dashboards and Terraform providers call it, with right and with wrong input."""

from harness import shape

import pulsar


def rest_start_of_tools(both):
    for method, path in [
        ("GET", "/admin/v2/clusters"), ("GET", "/admin/v2/clusters/standalone"), ("GET", "/admin/v2/tenants"), ("GET", "/admin/v2/tenants/public"), ("GET", "/admin/v2/namespaces/public"),
        ("GET", "/admin/v2/brokers"), ("GET", "/admin/v2/brokers/standalone"), ("GET", "/admin/v2/brokers/leaderBroker"), ("GET", "/admin/v2/brokers/health"), ("GET", "/admin/v2/brokers/ready"),
        ("GET", "/admin/v2/brokers/version"), ("GET", "/admin/v2/brokers/configuration/runtime"), ("GET", "/admin/v2/brokers/internal-configuration"), ("GET", "/admin/v2/broker-stats/topics"),
        ("GET", "/admin/v2/broker-stats/load-report"), ("GET", "/admin/v2/broker-stats/metrics"), ("GET", "/status.html"), ("GET", "/admin/v2/resourcegroups"), ("GET", "/admin/v2/bookies/all"), ("GET", "/admin/v2/functions/connectors"),
        ("GET", "/admin/v2/worker/cluster"), ("GET", "/admin/v2/brokers/standalone/127.0.0.1:8080/ownedNamespaces"), ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies"), ("GET", "/admin/v2/clusters/standalone/failureDomains"),
        ("GET", "/admin/v3/transactions/coordinators"), ("GET", "/"), ("GET", "/admin/"), ("GET", "/admin/v2"), ("GET", "/admin/v2/nothing"), ("GET", "/lookup/v2/topic/persistent/public/default/x"), ("GET", "/metrics/"),
        ("GET", "/admin/v2/namespaces/public/default"), ("GET", "/admin/v2/namespaces/public/default/bundles"), ("GET", "/admin/v2/namespaces/public/default/topics"), ("GET", "/admin/v2/persistent/public/default"),
        ("GET", "/admin/v2/brokers/configuration"), ("GET", "/admin/v2/brokers/configuration/values"), ("OPTIONS", "/admin/v2/clusters"), ("HEAD", "/admin/v2/clusters"), ("POST", "/admin/v2/brokers/health"), ("PATCH", "/admin/v2/clusters"),
        ("GET", "/lookup/v2/topic/persistent/public/default/x/bundle"), ("GET", "/admin/v2/brokers/backlog-quota-check"), ("GET", "/admin/v2/broker-stats/allocator-stats/default"), ("GET", "/admin/v2/persistent/public/default/partitioned"),
        ("GET", "/admin/v2/namespaces/public/default/permissions"), ("GET", "/admin/v2/namespaces/public/default/replication"), ("GET", "/admin/v2/resource-quotas"), ("GET", "/admin/v2/packages/function/public/default"), ("GET", "/ws/v2/producer/persistent/public/default/x"),
        ("GET", "/admin/v2/namespaces/public/default/antiAffinity"), ("GET", "/admin/v2/clusters/standalone/peers"), ("GET", "/admin/v2/clusters/nowhere"), ("GET", "/admin/v2/tenants/nobody"), ("GET", "/admin/v2/namespaces/nobody"), ("GET", "/admin/v2/namespaces/public/nowhere"),
        ("GET", "/admin/clusters"), ("GET", "/admin/persistent/public/default/x/stats"), ("GET", "/admin/v2//clusters"), ("GET", "/admin/v2/clusters/"), ("GET", "/admin/v2/tenants/"),
    ]:
        def step(s):
            status, body = s.rest(method, path)
            short = isinstance(body, (list, dict)) and not any(w in path for w in ("configuration", "broker-stats", "topics", "public/default", "namespaces/public", "tenants", "metrics"))
            return status, "text" if isinstance(body, str) else shape(body) if short else type(body).__name__
        both.do(f"{method} {path}", step)
    both.do("policies shape", lambda s: shape(s.rest("GET", "/admin/v2/namespaces/public/default")[1]))
    both.do("lookup shape", lambda s: shape(s.rest("GET", "/lookup/v2/topic/persistent/public/default/x")[1]))


def rest_namespace_policies(both):
    ns = f"/admin/v2/namespaces/public/ns-{both.unique}"
    both.do("create", lambda s: s.rest("PUT", ns, {"bundles": {"numBundles": 4}, "replication_clusters": ["standalone"]}))
    both.do("again", lambda s: s.rest("PUT", ns)[0])
    both.do("fresh", lambda s: s.rest("GET", ns))
    calls = {
        "retention": [{"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, {"retentionTimeInMinutes": -5, "retentionSizeInMB": 0}, {}, "x", None],
        "messageTTL": [3600, 0, -1, "a"],
        "backlogQuota": [{"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}, {"limit": 10, "policy": "consumer_backlog_eviction"}, {"policy": "nothing"}],
        "backlogQuota?backlogQuotaType=message_age": [{"limitSize": -1, "limitTime": 100, "policy": "producer_request_hold"}],
        "persistence": [{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}, {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 3, "managedLedgerMaxMarkDeleteRate": -1}],
        "dispatchRate": [{"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}, {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 0}],
        "subscriptionDispatchRate": [{"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1}],
        "replicatorDispatchRate": [{"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1}],
        "subscribeRate": [{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}],
        "publishRate": [{"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1}],
        "deduplication": [True, False, "x"],
        "deduplicationSnapshotInterval": [100, -1],
        "autoTopicCreation": [{"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, {"allowAutoTopicCreation": True, "topicType": "partitioned"}, {"allowAutoTopicCreation": False}, {"allowAutoTopicCreation": True, "topicType": "odd"}],
        "autoSubscriptionCreation": [{"allowAutoSubscriptionCreation": False}],
        "delayedDelivery": [{"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0}, {"tickTime": 0, "active": True}],
        "inactiveTopicPolicies": [{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 600, "deleteWhileInactive": True}],
        "maxProducersPerTopic": [5, -1], "maxConsumersPerTopic": [5, -1], "maxConsumersPerSubscription": [5, -1], "maxUnackedMessagesPerConsumer": [5, -1], "maxUnackedMessagesPerSubscription": [5, -1],
        "maxSubscriptionsPerTopic": [5, -1], "maxTopicsPerNamespace": [5, -1], "encryptionRequired": [True, False], "subscriptionAuthMode": ["None", "Prefix", "x"], "isAllowAutoUpdateSchema": [True],
        "compactionThreshold": [100, -1], "offloadThreshold": [10], "offloadDeletionLagMs": [10], "schemaValidationEnforced": [True], "schemaCompatibilityStrategy": ["FULL", "x"], "schemaAutoUpdateCompatibilityStrategy": ["Full", "x"],
        "subscriptionTypesEnabled": [["Shared"], ["x"]], "properties": [{"a": "b"}], "property/k/v": [None], "antiAffinity": ["g"], "subscriptionExpirationTime": [5, -1], "dispatcherPauseOnAckStatePersistent": [None], "entryFilters": [{"entryFilterNames": "a"}],
        "replication": [["standalone"], ["nowhere"], []], "allowedClusters": [["standalone"]],
    }
    for policy, bodies in calls.items():
        base, _, query = policy.partition("?")
        read = {"backlogQuota": "backlogQuotaMap", "property/k/v": "property/k"}.get(base, base)
        both.do(f"GET {policy} before", lambda s: s.rest("GET", f"{ns}/{read}"))
        for body in bodies:
            for method in ("POST", "PUT"):
                both.do(f"{method} {policy} {body}", lambda s: s.rest(method, f"{ns}/{policy}", body)[0])
            both.do(f"GET {policy}", lambda s: s.rest("GET", f"{ns}/{read}"))
        both.do(f"DELETE {policy}", lambda s: s.rest("DELETE", f"{ns}/{base}" + ("?" + query if query else ""))[0])
        both.do(f"GET {policy} after", lambda s: s.rest("GET", f"{ns}/{read}"))
    both.do("policies", lambda s: s.rest("GET", ns))
    both.do("delete", lambda s: s.rest("DELETE", ns))


def rest_topic_policies(both):
    topic = both.path()
    both.do("create", lambda s: s.rest("PUT", topic))
    calls = {
        "retention": [{"retentionTimeInMinutes": 10, "retentionSizeInMB": 50}], "messageTTL?messageTTL=60": [None], "backlogQuota": [{"limitSize": 10485760, "limitTime": -1, "policy": "producer_exception"}],
        "persistence": [{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}], "dispatchRate": [{"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1}],
        "subscriptionDispatchRate": [{"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1}], "subscribeRate": [{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}], "publishRate": [{"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}],
        "maxProducers": [10], "maxConsumers": [10], "maxConsumersPerSubscription": [10], "maxUnackedMessagesOnConsumer": [10], "maxUnackedMessagesOnSubscription": [10], "maxSubscriptionsPerTopic": [4], "deduplicationEnabled": [True],
        "deduplicationSnapshotInterval": [10], "delayedDelivery": [{"active": True, "tickTime": 1000}], "inactiveTopicPolicies": [{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 600, "deleteWhileInactive": True}],
        "maxMessageSize": [1000], "compactionThreshold": [1000], "subscriptionTypesEnabled": [["Shared", "Exclusive", "Failover", "Key_Shared"]], "schemaCompatibilityStrategy": ["FULL"], "schemaValidationEnforced": [True], "autoSubscriptionCreation": [{"allowAutoSubscriptionCreation": True}],
    }
    for policy, bodies in calls.items():
        base = policy.partition("?")[0]
        read = {"backlogQuota": "backlogQuotaMap"}.get(base, base)
        both.do(f"GET {base}", lambda s: s.rest("GET", f"{topic}/{read}"))
        for body in bodies:
            both.do(f"POST {policy}", lambda s: s.rest("PUT" if base in ("compactionThreshold", "schemaCompatibilityStrategy") else "POST", f"{topic}/{policy}", body)[0])
        both.do(f"GET {policy} set", lambda s: s.rest("GET", f"{topic}/{read}"), eventually=True)
        both.do(f"GET {policy} applied", lambda s: s.rest("GET", f"{topic}/{read}?applied=true"), eventually=True)
        both.do(f"DELETE {base}", lambda s: s.rest("DELETE", f"{topic}/{base}")[0])


def rest_topics(both):
    topic = both.path()
    missing = both.path(both.topic + "-missing")
    calls = [
        ("PUT", "", None), ("PUT", "", None), ("GET", "/stats", None), ("GET", "/subscriptions", None), ("PUT", "/subscription/a", None), ("PUT", "/subscription/a", None), ("PUT", "/subscription/b", {"ledgerId": -1, "entryId": -1, "properties": {"x": "y"}}),
        ("PUT", "/subscription/c", "earliest"), ("PUT", "/subscription/d", "odd"), ("PUT", "/subscription/e?replicated=true", "latest"), ("GET", "/subscription/b/properties", None), ("PUT", "/subscription/b/properties", {"z": "1"}), ("GET", "/subscription/b/properties", None),
        ("POST", "/subscription/a/skip/5", None), ("POST", "/subscription/a/skip/-5", None), ("POST", "/subscription/a/skip/x", None), ("POST", "/subscription/none/skip/5", None), ("POST", "/subscription/a/skip_all", None), ("POST", "/subscription/none/skip_all", None),
        ("POST", "/subscription/a/resetcursor/0", None), ("POST", "/subscription/a/resetcursor/x", None), ("POST", "/subscription/none/resetcursor/0", None), ("POST", "/subscription/a/resetcursor", {"ledgerId": -1, "entryId": -1}), ("POST", "/subscription/a/resetcursor", None),
        ("POST", "/subscription/a/expireMessages/10", None), ("POST", "/subscription/none/expireMessages/10", None), ("POST", "/subscription/a/expireMessages/x", None), ("POST", "/all_subscription/expireMessages/10", None), ("GET", "/subscription/a/position/1", None), ("GET", "/subscription/a/position/0", None),
        ("GET", "/lastMessageId", None), ("GET", "/messageid/0", None), ("GET", "/examinemessage?initialPosition=latest&messagePosition=1", None), ("GET", "/ledger/0/entry/0", None), ("GET", "/properties", None), ("PUT", "/properties", {"a": "b"}), ("GET", "/properties", None), ("DELETE", "/properties?key=a", None),
        ("GET", "/properties", None), ("GET", "/internalStats", None), ("GET", "/internal-info", None), ("GET", "/partitioned-stats", None), ("GET", "/partitions", None), ("PUT", "/partitions", 2), ("POST", "/partitions", 2), ("DELETE", "/partitions", None), ("POST", "/terminate/partitions", None),
        ("PUT", "/unload", None), ("GET", "/compaction", None), ("PUT", "/compaction", None), ("GET", "/offload", None), ("GET", "/permissions", None), ("POST", "/permissions/r", ["produce"]), ("DELETE", "/permissions/r", None), ("PUT", "/backlogSize", {"ledgerId": -1, "entryId": -1}),
        ("POST", "/subscription/a/analyzeBacklog", None), ("GET", "/subscription/a/replicatedSubscriptionStatus", None), ("POST", "/trim", None), ("DELETE", "/subscription/none", None), ("DELETE", "/subscription/a", None), ("DELETE", "/truncate", None), ("GET", "/odd", None), ("DELETE", "", None), ("DELETE", "", None),
    ]
    for method, path, body in calls:
        def step(s, base):
            status, answer = s.rest(method, base + path, body)
            return status, shape(answer) if isinstance(answer, dict) else answer if isinstance(answer, list) else type(answer).__name__
        both.do(f"{method} {path} {body if body is not None else ''}", lambda s: step(s, topic))
    for method, path, body in calls:
        if method != "PUT" and path:
            both.do(f"missing {method} {path}", lambda s: s.rest(method, missing + path, body)[0])
    for bad in ("persistent/public/nowhere/x", "persistent/nobody/x/y", "persistent/public/default/a%20b", "odd/public/default/x", "persistent/public/default/x-partition-0", "persistent/pub%3Alic/default/x", "persistent/public/default/%C3%BC", "persistent/public/default/a%2Fb", "persistent/public/default/x%3Fy"):
        for method, path, body in (("PUT", "", None), ("GET", "/stats", None), ("GET", "/partitions", None), ("PUT", "/partitions", 2), ("GET", "/subscriptions", None), ("DELETE", "?force=true", None), ("PUT", "/subscription/s", None)):
            both.do(f"{method} {bad}{path}", lambda s: s.rest(method, "/admin/v2/" + bad + path, body)[0])
    for body in (0, -1, "x", {"partitions": 2}, 1.5, True, 10**12, None, []):
        both.do(f"partitions {body}", lambda s: s.rest("PUT", topic + "-p/partitions", body)[0])
        both.do("delete", lambda s: s.rest("DELETE", topic + "-p/partitions")[0])


def rest_tenants(both):
    t = f"/admin/v2/tenants/t-{both.unique}"
    n = f"/admin/v2/namespaces/t-{both.unique}"
    for method, path, body in [
        ("PUT", t, None), ("PUT", t, {"allowedClusters": []}), ("PUT", t, {"adminRoles": ["a"], "allowedClusters": ["standalone"]}), ("PUT", t, {"allowedClusters": ["standalone"]}), ("GET", t, None), ("POST", t, {"allowedClusters": ["nowhere"]}), ("POST", t, {"allowedClusters": ["standalone"]}), ("GET", t, None),
        ("PUT", t + "%20x", {"allowedClusters": ["standalone"]}), ("PUT", n + "/a%20b", None), ("PUT", n + "/ns", None), ("PUT", n + "/ns2", {"bundles": {"numBundles": 0}}), ("PUT", n + "/ns3", {"bundles": {"numBundles": 16}}), ("GET", n + "/ns3/bundles", None), ("PUT", n + "/ns4", {"replication_clusters": ["nowhere"]}),
        ("PUT", n + "/ns5", {"odd": 1}), ("PUT", n + "/ns6", {"message_ttl_in_seconds": 5, "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}, "deduplicationEnabled": True, "max_producers_per_topic": 3}), ("GET", n + "/ns6", None), ("GET", n, None), ("GET", n + "/ns/topics", None), ("GET", n + "/ns/none", None),
        ("DELETE", t, None), ("DELETE", t + "?force=true", None), ("DELETE", n + "/ns", None), ("DELETE", n + "/ns", None), ("DELETE", n + "/ns?force=true", None), ("DELETE", n + "/ns2", None), ("DELETE", n + "/ns3", None), ("DELETE", n + "/ns5", None), ("DELETE", n + "/ns6", None), ("DELETE", t, None), ("GET", t, None), ("DELETE", t, None),
        ("GET", "/admin/v2/namespaces/public/default/permissions", None), ("POST", "/admin/v2/namespaces/public/default/permissions/r", ["consume"]), ("POST", "/admin/v2/namespaces/public/default/permissions/r", ["odd"]), ("GET", "/admin/v2/namespaces/public/default/permissions", None), ("DELETE", "/admin/v2/namespaces/public/default/permissions/r", None),
    ]:
        both.do(f"{method} {path.replace(both.unique, '')} {body}", lambda s: (lambda a: (a[0], shape(a[1]) if a[0] >= 400 else a[1]))(s.rest(method, path, body)))


def rest_schemas(both):
    base = "/admin/v2/schemas/" + both.topic.split("://")[1]
    record = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
    wider = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":["null","int"],"default":null}]}'
    broken = '{"type":"record","name":"R","fields":[{"name":"z","type":"int"}]}'
    for kind in ("AVRO", "JSON", "STRING", "INT32", "BYTES", "NONE", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "BOOLEAN", "DATE", "AUTO_CONSUME", "odd", "INSTANT", "LOCAL_DATE_TIME", "DOUBLE", "EXTERNAL"):
        at = base + "-" + kind
        for label, text in (("record", record), ("same", record), ("wider", wider), ("broken", broken), ("empty", ""), ("odd", "{")):
            both.do(f"{kind} post {label}", lambda s: (lambda a: (a[0], shape(a[1]) if a[0] >= 400 else a[1]))(s.rest("POST", at + "/schema", {"type": kind, "schema": text, "properties": {"p": "q"}})))
            both.do(f"{kind} compatibility {label}", lambda s: (lambda a: (a[0], shape(a[1]) if a[0] >= 400 else a[1]))(s.rest("POST", at + "/compatibility", {"type": kind, "schema": text, "properties": {}})))
        for path in ("/schema", "/schemas", "/schema/0", "/schema/1", "/schema/9", "/schema/x", "/metadata"):
            def step(s):
                status, body = s.rest("GET", at + path)
                if isinstance(body, dict):
                    body.pop("timestamp", None)
                    for each in body.get("getSchemaResponses", []):
                        each.pop("timestamp", None)
                return status, shape(body) if status >= 400 or path == "/metadata" else body
            both.do(f"{kind} get {path}", step)
        both.do(f"{kind} version", lambda s: s.rest("POST", at + "/version", {"type": kind, "schema": record, "properties": {}}))
        both.do(f"{kind} delete", lambda s: s.rest("DELETE", at + "/schema"))
        both.do(f"{kind} delete again", lambda s: s.rest("DELETE", at + "/schema"))
        both.do(f"{kind} get", lambda s: s.rest("GET", at + "/schema")[0])


def schemas_of_clients(both):
    from pulsar import schema as S

    class A(S.Record):
        a = S.String()
        b = S.Integer(default=5)

    class B(S.Record):
        a = S.String()
        b = S.Integer(default=5)
        c = S.Boolean(default=True)

    class C(S.Record):
        z = S.Integer(required=True)

    for make in (S.JsonSchema, S.AvroSchema):
        topic = f"{both.topic}-{make.__name__}"

        def begin(s):
            s.keep["c"] = s.client.subscribe(topic, "s", schema=make(A))
            p = s.client.create_producer(topic, schema=make(A))
            p.send(A(a="x", b=7))
            p2 = s.client.create_producer(topic, schema=make(B))
            p2.send(B(a="y", b=8, c=False))
            out = []
            for _ in range(2):
                m = s.keep["c"].receive(timeout_millis=5000)
                out.append((m.value().a, m.value().b, m.schema_version()))
            return out
        both.do(f"{make.__name__}", begin)
        both.do("incompatible producer", lambda s: s.client.create_producer(topic, schema=make(C)) and None)
        both.do("incompatible consumer", lambda s: s.client.subscribe(topic, "t", schema=make(C)) and None)
        both.do("bytes producer", lambda s: s.client.create_producer(topic).send(b"raw") and None)
        both.do("bytes consumer", lambda s: s.client.subscribe(topic, "u") and None)
        both.do("string consumer", lambda s: s.client.subscribe(topic, "v", schema=S.StringSchema()) and None)
        both.do("string producer", lambda s: s.client.create_producer(topic, schema=S.StringSchema()) and None)
        both.do("reader", lambda s: s.client.create_reader(topic, pulsar.MessageId.earliest, schema=make(B)).read_next(timeout_millis=3000).value().a)
        both.do("auto consumer", lambda s: s.client.subscribe(topic, "w", schema=S.AutoConsumeSchema()) and None)
        both.do("fetch", lambda s: (lambda b: (b[1]["version"], b[1]["type"], b[1]["data"]))(s.rest("GET", "/admin/v2/schemas/" + topic.split("://")[1] + "/schema")))
        both.do("unload", lambda s: s.rest("PUT", both.path(topic) + "/unload")[0])
        both.do("after", lambda s: s.client.create_producer(topic, schema=make(A)).send(A(a="q", b=1)) and None)
    both.do("string", lambda s: (s.client.create_producer(both.topic + "-st", schema=S.StringSchema()).send("ü"), s.client.create_reader(both.topic + "-st", pulsar.MessageId.earliest, schema=S.StringSchema()).read_next(timeout_millis=4000).value())[1])
