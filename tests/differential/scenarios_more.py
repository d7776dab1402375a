"""Other ways of the same: HTTP service URLs, asyncio, listeners, several topics, ids that come from elsewhere, topics that go away."""

import asyncio
import re
import threading
import time

import pulsar
from pulsar import ConsumerType as T, InitialPosition as P

from harness import drain, seen
from scenarios_basic import _numbers, _send


def http_service_url(both):
    def client(s):
        return s.keep.setdefault("h", pulsar.Client(s.side.admin, logger=s.client_logger(), operation_timeout_seconds=10))
    both.do("plain", lambda s: (client(s).create_producer(both.topic).send(b"x"), [seen(m) for m in drain(client(s).subscribe(both.topic, "s", initial_position=P.Earliest))])[1])
    both.do("partitions", lambda s: s.rest("PUT", both.path() + "-p/partitions", 3))
    both.do("partitioned", lambda s: (_send(s, both.topic + "-p", 9, producer=client(s).create_producer(both.topic + "-p")), sorted(m.data() for m in drain(client(s).subscribe(both.topic + "-p", "s", initial_position=P.Earliest))))[1])
    both.do("names", lambda s: [t[-14:] for t in client(s).get_topic_partitions(both.topic + "-p")])
    both.do("pattern", lambda s: sorted(m.data() for m in drain(client(s).subscribe(re.compile(both.topic + ".*"), "r", initial_position=P.Earliest))))
    both.do("missing namespace", lambda s: client(s).create_producer("persistent://public/nowhere/x") and None)
    both.do("missing partition", lambda s: client(s).create_producer(both.topic + "-p-partition-7") and None)
    both.do("np", lambda s: client(s).create_producer(both.topic.replace("persistent", "non-persistent")).send(b"x").entry_id())
    from pulsar import schema as S

    class R(S.Record):
        a = S.String()
    both.do("schema", lambda s: (client(s).create_producer(both.topic + "-j", schema=S.JsonSchema(R)).send(R(a="q")), client(s).subscribe(both.topic + "-j", "s", initial_position=P.Earliest, schema=S.AutoConsumeSchema()).receive(timeout_millis=5000).value())[1])


def async_client(both):
    import pulsar.asyncio as A

    def step(s):
        async def run():
            client = A.Client(s.url)
            producer = await client.create_producer(both.topic)
            consumer = await client.subscribe(both.topic, "s", initial_position=P.Earliest)
            ids = await asyncio.gather(*(producer.send(b"%d" % n, event_timestamp=n + 1) for n in range(20)))
            out = []
            for _ in range(20):
                m = await asyncio.wait_for(consumer.receive(), 10)
                await consumer.acknowledge(m)
                out.append(seen(m)[:-2])
            await consumer.seek(ids[10])
            again = [(await asyncio.wait_for(consumer.receive(), 10)).data() for _ in range(2)]
            reader = await client.create_reader(both.topic, pulsar.MessageId.earliest)
            first = (await asyncio.wait_for(reader.read_next(), 10)).data()
            await consumer.unsubscribe()
            await client.close()
            return out, again, first
        return asyncio.run(run())
    both.do("asyncio", step)
    both.do("subs", lambda s: s.rest("GET", both.path() + "/subscriptions")[1])


def listeners(both):
    def step(s):
        got, lock = [], threading.Lock()

        def heard(consumer, message):
            with lock:
                got.append((message.data(), message.redelivery_count()))
            if message.data().endswith(b"3") and message.redelivery_count() < 2:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        c = s.client.subscribe(both.topic, "s", consumer_type=T.Shared, message_listener=heard, negative_ack_redelivery_delay_ms=100)
        _send(s, both.topic, 20)
        deadline = time.time() + 15
        while len(got) < 24 and time.time() < deadline:
            time.sleep(0.05)
        c.pause_message_listener()
        _send(s, both.topic, 3, 100)
        time.sleep(0.5)
        c.resume_message_listener()
        while len(got) < 27 + 2 and time.time() < deadline:
            time.sleep(0.05)
        s.keep["c"] = c
        return sorted(got)
    both.do("listener", step)
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/stats")[1], ("msgBacklog", "unackedMessages")), eventually=True)


def several_topics(both):
    topics = [f"{both.topic}-{n}" for n in range(3)]
    both.do("parted", lambda s: s.rest("PUT", both.path(topics[2]) + "/partitions", 2))
    def begin(s):
        s.keep["c"] = s.client.subscribe(topics, "s", consumer_type=T.Shared, negative_ack_redelivery_delay_ms=100)
        for n, t in enumerate(topics):
            _send(s, t, 6, n * 10)
        s.keep["got"] = drain(s.keep["c"])
        return sorted((m.data(), m.topic_name()[-14:] if n < 2 else None) for n, m in enumerate(sorted(s.keep["got"], key=lambda m: m.data())))
    both.do("read", begin)
    both.do("nack", lambda s: ([s.keep["c"].negative_acknowledge(m) for m in s.keep["got"] if m.data()[-1:] == b"2"], sorted(m.data() for m in drain(s.keep["c"], 1500)))[1])
    both.do("ack", lambda s: [s.keep["c"].acknowledge(m) and None for m in s.keep["got"] if m.data()[-1:] != b"1"])
    both.do("redeliver", lambda s: (s.keep["c"].redeliver_unacknowledged_messages(), sorted(m.data() for m in drain(s.keep["c"])))[1])
    both.do("seek time", lambda s: (s.keep["c"].seek(1), len(drain(s.keep["c"])))[1])
    both.do("seek earliest", lambda s: (s.keep["c"].seek(pulsar.MessageId.earliest), len(drain(s.keep["c"])))[1])
    both.do("seek id", lambda s: s.keep["c"].seek(s.keep["got"][0].message_id()))
    both.do("last id", lambda s: s.keep["c"].get_last_message_id() and None)
    both.do("unsubscribe", lambda s: s.keep["c"].unsubscribe())
    both.do("subs", lambda s: [s.rest("GET", both.path(t) + "/subscriptions") for t in topics])


def partitioned_reader_and_seek(both):
    both.do("create", lambda s: s.rest("PUT", both.path() + "/partitions", 3))
    def begin(s):
        s.keep["c"] = s.client.subscribe(both.topic, "s")
        _send(s, both.topic, 12, keys=5)
        s.keep["got"] = drain(s.keep["c"])
        return len(s.keep["got"])
    both.do("begin", begin)
    both.do("cumulative", lambda s: s.keep["c"].acknowledge_cumulative(s.keep["got"][3]))
    both.do("seek earliest", lambda s: (s.keep["c"].seek(pulsar.MessageId.earliest), len(drain(s.keep["c"])))[1])
    both.do("seek latest", lambda s: (s.keep["c"].seek(pulsar.MessageId.latest), len(drain(s.keep["c"])))[1])
    both.do("seek 0", lambda s: (s.keep["c"].seek(0), len(drain(s.keep["c"])))[1])
    both.do("reader", lambda s: sorted(m.data() for m in drain(s.client.create_reader(both.topic, pulsar.MessageId.earliest))))
    both.do("reader available", lambda s: s.client.create_reader(both.topic, pulsar.MessageId.latest).has_message_available())
    both.do("reader at id", lambda s: s.client.create_reader(both.topic, s.keep["got"][0].message_id()) and None)
    both.do("busy", lambda s: s.client.subscribe(both.topic, "s") and None)
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/partitioned-stats")[1], ("msgBacklog",)), eventually=True)


def ids_from_elsewhere(both):
    def step(s):
        c = s.client.subscribe(both.topic, "s", consumer_type=T.Shared)
        d = s.another_client().subscribe(both.topic, "s", consumer_type=T.Shared)
        p = s.client.create_producer(both.topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=500)
        ids = []
        for n in range(10):
            p.send_async(b"%d" % n, lambda r, i: ids.append(i))
        p.flush()
        got = {m.data(): m for m in drain(c) + drain(d, 500)}
        for n in (0, 1, 2, 3, 4):
            c.acknowledge(pulsar.MessageId.deserialize(got[b"%d" % n].message_id().serialize()))
        c.acknowledge(got[b"5"])
        c.acknowledge(got[b"5"])
        d.acknowledge(got[b"6"])
        time.sleep(0.5)
        c.close()
        d.close()
        s.keep["ids"] = ids
        e = s.client.subscribe(both.topic, "s", consumer_type=T.Shared)
        return sorted(m.data() for m in drain(e)), len(ids), [(i.entry_id(), i.batch_index(), i.partition()) for i in sorted(ids, key=lambda i: (i.entry_id(), i.batch_index()))]
    both.do("acks", step)
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/stats")[1], ("msgBacklog",)), eventually=True)


def topics_that_go(both):
    def begin(s):
        s.keep["c"] = s.client.subscribe(both.topic, "s")
        s.keep["p"] = s.client.create_producer(both.topic)
        return s.keep["p"].send(b"1").entry_id()
    both.do("begin", begin)
    both.do("delete", lambda s: s.rest("DELETE", both.path())[0])
    both.do("force", lambda s: s.rest("DELETE", both.path() + "?force=true")[0])
    time.sleep(2)
    both.do("send", lambda s: s.keep["p"].send(b"2").entry_id())
    both.do("read", lambda s: [m.data() for m in drain(s.keep["c"], 2000, first=4000)])
    both.do("subs", lambda s: s.rest("GET", both.path() + "/subscriptions"), eventually=True)
    both.do("sub gone", lambda s: s.rest("DELETE", both.path() + "/subscription/s?force=true")[0])
    time.sleep(1)
    both.do("send 3", lambda s: s.keep["p"].send(b"3") and None)
    both.do("read", lambda s: [m.data() for m in drain(s.keep["c"], 1500, first=4000)][-1:])
    ns = f"public/go-{both.unique}"
    both.do("ns", lambda s: s.rest("PUT", f"/admin/v2/namespaces/{ns}")[0])
    both.do("in it", lambda s: s.keep.update(n=s.client.create_producer(f"persistent://{ns}/t")))
    both.do("send", lambda s: s.keep["n"].send(b"1").entry_id())
    both.do("unload ns", lambda s: s.rest("PUT", f"/admin/v2/namespaces/{ns}/unload")[0])
    both.do("send", lambda s: s.keep["n"].send(b"2") and None)
    both.do("delete ns", lambda s: s.rest("DELETE", f"/admin/v2/namespaces/{ns}")[0])
    both.do("close", lambda s: s.keep["n"].close())
    both.do("delete ns", lambda s: s.rest("DELETE", f"/admin/v2/namespaces/{ns}")[0])
    both.do("delete topic", lambda s: s.rest("DELETE", f"/admin/v2/persistent/{ns}/t")[0])
    both.do("delete ns", lambda s: s.rest("DELETE", f"/admin/v2/namespaces/{ns}")[0])
    both.do("produce", lambda s: s.client.create_producer(f"persistent://{ns}/t") and None)


def limits(both):
    def big(size, **o):
        def step(s):
            p = s.client.create_producer(both.topic, **o)
            c = s.keep.setdefault("c", s.client.subscribe(both.topic, "s"))
            p.send(b"x" * size)
            return [len(m.data()) for m in drain(c)]
        return step
    for size in (5 * 1024 * 1024 - 1000, 5 * 1024 * 1024, 5 * 1024 * 1024 + 1):
        both.do(f"{size}", big(size))
        both.do(f"{size} lz4", big(size, compression_type=pulsar.CompressionType.LZ4))
        both.do(f"{size} batch", big(size, batching_enabled=True))
    both.do("many properties", lambda s: s.client.create_producer(both.topic).send(b"x", properties={f"k{n}": "v" * 100 for n in range(2000)}) and None)
    both.do("big key", lambda s: s.client.create_producer(both.topic).send(b"x", partition_key="k" * 100_000) and None)
    both.do("read", lambda s: [(len(m.properties()), len(m.partition_key())) for m in drain(s.keep["c"])])
    both.do("long topic", lambda s: s.client.create_producer("persistent://public/default/" + "t" * 240 + both.unique).send(b"x").entry_id())
    both.do("long subscription", lambda s: s.client.subscribe(both.topic, "s" * 300) and None)
    both.do("long consumer name", lambda s: s.client.subscribe(both.topic, "t", consumer_name="n" * 1000) and None)
    both.do("consumer properties", lambda s: s.client.subscribe(both.topic, "u", properties={"k": "v" * 2000}) and None)
    both.do("producer properties", lambda s: s.client.create_producer(both.topic, properties={"k": "v" * 2000}) and None)


def policies_at_work(both):
    ns = f"public/pol-{both.unique}"
    path = f"/admin/v2/namespaces/{ns}"
    t = f"persistent://{ns}/t"
    both.do("ns", lambda s: s.rest("PUT", path)[0])
    both.do("limits", lambda s: [s.rest("POST", f"{path}/{k}", v)[0] for k, v in (("maxProducersPerTopic", 1), ("maxConsumersPerTopic", 2), ("maxConsumersPerSubscription", 1), ("maxSubscriptionsPerTopic", 2))])
    both.do("p1", lambda s: s.keep.update(p=s.client.create_producer(t)))
    both.do("p2", lambda s: s.client.create_producer(t) and None)
    both.do("c1", lambda s: s.keep.update(c1=s.client.subscribe(t, "a", consumer_type=T.Shared)))
    both.do("c2 same", lambda s: s.client.subscribe(t, "a", consumer_type=T.Shared) and None)
    both.do("c2 other", lambda s: s.keep.update(c2=s.client.subscribe(t, "b")))
    both.do("c3", lambda s: s.client.subscribe(t, "c") and None)
    both.do("close", lambda s: s.keep["c1"].close())
    both.do("third sub", lambda s: s.client.subscribe(t, "c") and None)
    both.do("reader", lambda s: s.client.create_reader(t, pulsar.MessageId.earliest).has_message_available())
    both.do("admin sub", lambda s: s.rest("PUT", f"/admin/v2/persistent/{ns}/t/subscription/d")[0])
    both.do("types", lambda s: s.rest("POST", f"{path}/subscriptionTypesEnabled", ["Shared"])[0])
    both.do("exclusive", lambda s: s.client.subscribe(f"persistent://{ns}/u", "a") and None)
    both.do("shared", lambda s: s.client.subscribe(f"persistent://{ns}/u", "a", consumer_type=T.Shared) and None)
    both.do("no auto sub", lambda s: s.rest("POST", f"{path}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})[0])
    both.do("new sub", lambda s: s.client.subscribe(f"persistent://{ns}/u", "n", consumer_type=T.Shared) and None)
    both.do("known sub", lambda s: s.client.subscribe(f"persistent://{ns}/u", "a", consumer_type=T.Shared) and None)
    both.do("topics", lambda s: s.rest("POST", f"{path}/maxTopicsPerNamespace", 3)[0])
    both.do("third topic", lambda s: s.client.create_producer(f"persistent://{ns}/v") and None)
    both.do("fourth topic", lambda s: s.client.create_producer(f"persistent://{ns}/w") and None)
    both.do("schema enforced", lambda s: [s.rest("POST", f"{path}/schemaValidationEnforced", True)[0], s.rest("DELETE", f"{path}/maxTopicsPerNamespace")[0], s.rest("DELETE", f"{path}/maxProducersPerTopic")[0]])
    from pulsar import schema as S
    both.do("string producer", lambda s: s.client.create_producer(f"persistent://{ns}/v", schema=S.StringSchema()) and None)
    both.do("bytes producer", lambda s: s.client.create_producer(f"persistent://{ns}/v") and None)
    both.do("no updates", lambda s: s.rest("POST", f"{path}/isAllowAutoUpdateSchema", False)[0])

    class R(S.Record):
        a = S.String()
    both.do("new schema", lambda s: s.client.create_producer(f"persistent://{ns}/t", schema=S.JsonSchema(R)) and None)
