"""What a user does in the first week, feature by feature."""

import re
import time

import pulsar
from _pulsar import ProducerAccessMode, RegexSubscriptionMode
from pulsar import ConsumerType as T, InitialPosition as P

from harness import drain, seen, shape

EARLY = P.Earliest
COMPRESSIONS = [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY]
BATCHING = [None, pulsar.BatchingType.Default, pulsar.BatchingType.KeyBased]


def _send(scope, topic, count, first=0, producer=None, keys=0, **options):
    made = producer or scope.client.create_producer(topic, **options)
    for n in range(first, first + count):
        extra = {"partition_key": f"k{n % keys}"} if keys else {}
        made.send_async(b"m%d" % n, lambda *_: None, properties={"n": str(n)}, **extra)
    made.flush()
    if not producer:
        made.close()
    return made


def _ids(messages):
    """Message ids with ledgers counted from the first: what they look like, not which they are."""
    ledgers = {}
    return [(ledgers.setdefault(m.message_id().ledger_id(), len(ledgers)), m.message_id().entry_id(), m.message_id().partition(), m.message_id().batch_index()) for m in messages]


def everything_a_message_carries(both):
    for c in COMPRESSIONS:
        for b in BATCHING:
            topic = f"{both.topic}-{c}-{b}".replace(" ", "")

            def step(scope):
                consumer = scope.client.subscribe(topic, "s", initial_position=EARLY, consumer_type=T.Shared)
                extra = {"batching_enabled": True, "batching_type": b, "batching_max_publish_delay_ms": 300, "batching_max_messages": 4} if b is not None else {}
                producer = scope.client.create_producer(topic, compression_type=c, producer_name=f"p-{both.unique}-{c}-{b}", initial_sequence_id=41, **extra)
                sent = []
                for n in range(9):
                    producer.send_async(b"x" * n * 300, lambda r, i: sent.append((str(r), i.entry_id(), i.batch_index())), properties={"a": "", "ü": "€" * n},
                                        partition_key=f"k{n % 2}", ordering_key="o" if n % 3 else None, event_timestamp=1000 + n if n % 2 else None,
                                        sequence_id=100 + n)
                producer.flush()
                got = drain(consumer)
                return sent, [seen(m) for m in got], _ids(got), producer.last_sequence_id(), producer.producer_name(), [m.producer_name() for m in got][:1], [m.topic_name() for m in got][:1]

            both.do(f"{c} {b}", step)


def null_and_empty_payloads(both):
    def step(scope):
        consumer = scope.client.subscribe(both.topic, "s", initial_position=EARLY)
        producer = scope.client.create_producer(both.topic)
        producer.send(b"")
        producer.send(b"", partition_key="")
        producer.send(b"x", properties={"": "", "k": ""})
        return [seen(m) for m in drain(consumer)]
    both.do("payloads", step)


def chunks(both):
    def step(scope):
        consumer = scope.client.subscribe(both.topic, "s", initial_position=EARLY, consumer_type=T.Shared, negative_ack_redelivery_delay_ms=200)
        producer = scope.client.create_producer(both.topic, chunking_enabled=True, compression_type=pulsar.CompressionType.LZ4)
        import random
        data = random.Random(5).randbytes(11_000_000)
        producer.send(data, properties={"a": "b"}, partition_key="k")
        producer.send(b"small")
        got = [consumer.receive(timeout_millis=20000) for _ in range(2)]
        first = [(seen(m), m.data() == data) for m in got]
        consumer.negative_acknowledge(got[0])
        again = consumer.receive(timeout_millis=20000)
        r = first, seen(again), again.data() == data
        consumer.acknowledge(again)
        consumer.acknowledge(got[1])
        consumer.seek(got[0].message_id())
        after = [seen(m)[:2] for m in drain(consumer, 2000)]
        reader = scope.client.create_reader(both.topic, pulsar.MessageId.earliest)
        return r, after, [seen(m)[1] for m in drain(reader, 2000)]
    both.do("chunks", step)
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/stats")[1]), eventually=True)


NUMBERS = ("msgInCounter", "msgOutCounter", "msgBacklog", "msgBacklogNoDelayed", "unackedMessages", "msgDelayed", "type", "isDurable", "publishers", "consumers", "subscriptions", "availablePermits",
           "backlogQuotaLimitSize", "messageAckRate", "blockedConsumerOnUnackedMsgs", "blockedSubscriptionOnUnackedMsgs", "nonContiguousDeletedMessagesRanges", "allowOutOfOrderDelivery",
           "keySharedMode", "subscriptionProperties", "consumerName", "metadata", "accessMode", "supportsPartialProducer", "msgDropped", "deduplicationStatus", "waitingPublishers",
           "totalNonContiguousDeletedMessagesRange", "nonContiguousDeletedMessagesRangesSerializedSize", "priorityLevel", "chunkedMessageRate", "isReplicated", "durable", "replicated", "readPositionWhenJoining",
           "delayedMessageIndexSizeInBytes", "filterProcessedMsgCount", "earliestMsgPublishTimeInBacklogs", "nonContiguous", "publisherName", "producerName", "unackedMessagesInMemory", "keyHashRanges", "keyHashRangeArrays")


def _numbers(stats, names=NUMBERS):
    return _rename(_some(stats, names))


def _some(stats, names):
    if isinstance(stats, dict):
        return {k: _some(v, names) for k, v in stats.items() if isinstance(v, (dict, list)) or k in names}
    if isinstance(stats, list):
        return [_some(v, names) for v in stats]
    return stats


def statistics(both):
    for kind in (T.Exclusive, T.Shared, T.Failover, T.KeyShared):
        topic = f"{both.topic}-{kind}".replace(".", "-")

        def begin(s):
            s.keep["c"] = s.client.subscribe(topic, "s", consumer_type=kind, consumer_name="me", receiver_queue_size=20, properties={"a": "b"}, initial_position=EARLY)
            s.keep["late"] = s.client.subscribe(topic, "late", consumer_type=kind, consumer_name="late", receiver_queue_size=20)
            s.keep["p"] = s.client.create_producer(topic, producer_name=f"prod-{both.unique}-{kind}", properties={"pa": "pb"}, batching_enabled=kind == T.Shared, batching_max_publish_delay_ms=100, batching_max_messages=10)
            _send(s, topic, 35, producer=s.keep["p"], keys=3)
            s.keep["r"] = s.client.create_reader(topic, pulsar.MessageId.earliest, reader_name="rr", receiver_queue_size=3)
            return [s.keep["c"].receive(timeout_millis=5000).data() for _ in range(12)]
        both.do(f"begin {kind}", begin)

        def stats(s):
            return _rename(_numbers(s.rest("GET", both.path(topic) + "/stats")[1]))
        both.do(f"stats {kind}", stats, eventually=True)
        both.do(f"shape {kind}", lambda s: _rename(shape(s.rest("GET", both.path(topic) + "/stats?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true")[1])))
        both.do(f"ack {kind}", lambda s: [s.keep["late"].acknowledge(m) for m in drain(s.keep["late"])[:7]])
        both.do(f"acked stats {kind}", stats, eventually=True)
        both.do(f"internal shape {kind}", lambda s: _rename(shape(s.rest("GET", both.path(topic) + "/internalStats")[1])))
        both.do(f"internal {kind}", lambda s: _rename(_numbers(s.rest("GET", both.path(topic) + "/internalStats?metadata=true")[1],
                ("entriesAddedCounter", "numberOfEntries", "numberOfEntriesSinceFirstNotAckedMessage", "messagesConsumedCounter", "individuallyDeletedMessages", "state", "properties", "entries", "offloaded", "pendingAddEntriesCount", "waitingReadOp", "pendingReadOps"))), eventually=True)
        both.do(f"close {kind}", lambda s: (s.keep["c"].close(), s.keep["p"].close()))
        both.do(f"after close {kind}", stats, eventually=True)
    both.do("stats of a partitioned topic that is none", lambda s: s.rest("GET", both.path() + "/partitioned-stats"))


def _rename(value):
    """Reader subscriptions and generated names are random."""
    if isinstance(value, dict):
        return {re.sub(r"^reader-[0-9a-f]+$|^[0-9a-f]{10}$", "reader", k): "generated" if k in ("consumerName", "producerName") and re.match(r"[0-9a-f]{10}$|standalone", str(v)) else _rename(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rename(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"reader-[0-9a-f]+", "reader", value)
    return value


def readers(both):
    both.do("send", lambda s: s.keep.update(ids=[s.keep.setdefault("p", s.client.create_producer(both.topic)).send(b"r%d" % n) for n in range(10)]))
    for inclusive in (False, True):
        for at in (0, 4, 9):
            both.do(f"reader {inclusive} {at}", lambda s: [m.data() for m in drain(s.client.create_reader(both.topic, s.keep["ids"][at], start_message_id_inclusive=inclusive))])
        for name, at in (("earliest", pulsar.MessageId.earliest), ("latest", pulsar.MessageId.latest)):
            def step(s):
                r = s.client.create_reader(both.topic, at, start_message_id_inclusive=inclusive)
                available = r.has_message_available()
                got = [m.data() for m in drain(r)]
                still = r.has_message_available()
                s.keep["p"].send(b"more-%d" % len(name))
                after = r.has_message_available(), [m.data() for m in drain(r)]
                return available, got, still, after
            both.do(f"reader at {name} {inclusive}", step)
    def seeks(s):
        r = s.client.create_reader(both.topic, pulsar.MessageId.earliest)
        out = []
        first = r.read_next(timeout_millis=5000)
        for target in (s.keep["ids"][5], first.publish_timestamp(), 1, int(time.time() * 1000) + 60_000, pulsar.MessageId.latest, pulsar.MessageId.earliest):
            r.seek(target)
            out.append((r.has_message_available(), [m.data() for m in drain(r)][:3], r.has_message_available()))
        r.seek(pulsar.MessageId.latest)
        return out, r.has_message_available()
    both.do("reader seeks", seeks)
    both.do("reader of nothing", lambda s: s.client.create_reader(both.topic + "-none", pulsar.MessageId.earliest).has_message_available())
    def far(s):
        far = pulsar.MessageId(-1, s.keep["ids"][0].ledger_id(), 5000, -1)
        r = s.client.create_reader(both.topic, far)
        available = r.has_message_available()
        s.keep["p"].send(b"behind")
        return available, [m.data() for m in drain(r)]
    both.do("reader behind the end", far)
    def before(s):
        r = s.client.create_reader(both.topic, pulsar.MessageId(-1, 0, 3, -1))
        return r.has_message_available(), [m.data() for m in drain(r)]
    both.do("reader at ledger 0", before)
    def future(s):
        r = s.client.create_reader(both.topic, pulsar.MessageId(-1, 1 << 50, 3, -1))
        a = r.has_message_available()
        s.keep["p"].send(b"behind2")
        return a, [m.data() for m in drain(r)]
    both.do("reader at a ledger to come", future)


def table_view(both):
    def step(s):
        p = s.client.create_producer(both.topic, batching_enabled=True)
        for n in range(20):
            p.send(b"v%d" % n, partition_key=f"k{n % 6}")
        p.send(b"nokey")
        view = s.client.create_table_view(both.topic)
        before = {f"k{i}": view.get(f"k{i}") for i in range(7)}
        p.send(b"", partition_key="k1")
        p.send(b"new", partition_key="k9")
        s.keep["view"] = view
        return before
    both.do("table view", step)
    both.do("updated", lambda s: [s.keep["view"].get(k) for k in ("k1", "k9", "k2")], eventually=True)
    def parted(s):
        t = both.topic + "-p"
        s.rest("PUT", both.path(t) + "/partitions", 3)
        p = s.client.create_producer(t)
        for n in range(20):
            p.send(b"v%d" % n, partition_key=f"k{n % 6}")
        v = s.client.create_table_view(t)
        return [v.get(f"k{i}") for i in range(7)]
    both.do("partitioned", parted)


def acks(both):
    for batched in (False, True):
        topic = f"{both.topic}-{batched}"
        def begin(s):
            s.keep["c"] = s.client.subscribe(topic, "s", consumer_type=T.Shared, negative_ack_redelivery_delay_ms=100, batch_index_ack_enabled=True)
            p = s.client.create_producer(topic, batching_enabled=batched, batching_max_messages=5, batching_max_publish_delay_ms=500)
            _send(s, topic, 20, producer=p)
            s.keep["got"] = drain(s.keep["c"])
            return [seen(m) for m in s.keep["got"]]
        both.do(f"begin {batched}", begin)
        both.do("cumulative on shared", lambda s: s.keep["c"].acknowledge_cumulative(s.keep["got"][3]))
        both.do("ack some", lambda s: [s.keep["c"].acknowledge(s.keep["got"][i]) for i in (0, 1, 2, 6, 7, 19)])
        both.do("nack some", lambda s: [s.keep["c"].negative_acknowledge(s.keep["got"][i]) for i in (3, 8, 18)])
        both.do("nacked", lambda s: sorted(seen(m) for m in drain(s.keep["c"], 1500)))
        both.do("stats", lambda s: _numbers(s.rest("GET", both.path(topic) + "/stats")[1]), eventually=True)
        both.do("redeliver", lambda s: (s.keep["c"].redeliver_unacknowledged_messages(), sorted(seen(m) for m in drain(s.keep["c"])))[1])
        both.do("redeliver 2", lambda s: (s.keep["c"].redeliver_unacknowledged_messages(), sorted(seen(m) for m in drain(s.keep["c"])))[1])
        both.do("unload", lambda s: s.rest("PUT", both.path(topic) + "/unload"))
        both.do("after unload", lambda s: sorted(seen(m) for m in drain(s.keep["c"], 3000)))
        both.do("exclusive busy", lambda s: s.client.subscribe(topic, "s", consumer_type=T.Exclusive))
        both.do("close", lambda s: s.keep["c"].close())
        def again(s):
            s.keep["c"] = s.client.subscribe(topic, "s", consumer_type=T.Failover, batch_index_ack_enabled=True)
            s.keep["got"] = drain(s.keep["c"])
            return [seen(m) for m in s.keep["got"]]
        both.do("as failover", again)
        both.do("cumulative", lambda s: s.keep["c"].acknowledge_cumulative(s.keep["got"][5]))
        both.do("stats", lambda s: _numbers(s.rest("GET", both.path(topic) + "/stats")[1]), eventually=True)
        both.do("close", lambda s: s.keep["c"].close())
        both.do("again", again)


def dead_letters(both):
    for kind in (T.Shared, T.KeyShared):
        topic = f"{both.topic}-{kind}".replace(".", "-")
        def begin(s):
            s.keep["dlq"] = s.client.subscribe(topic + "-s-DLQ", "d", initial_position=EARLY)
            s.keep["c"] = s.client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=100, initial_position=EARLY,
                                             dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=topic + "-s-DLQ", initial_subscription_name="init"))
            _send(s, topic, 6, keys=2)
            out = []
            for _ in range(4):
                got = drain(s.keep["c"], 1200)
                out.append(sorted(seen(m) for m in got))
                for m in got:
                    (s.keep["c"].acknowledge if m.data() == b"m3" else s.keep["c"].negative_acknowledge)(m)
            return out
        both.do(f"rounds {kind}", begin)
        def dead(s):
            return sorted((m.data(), m.partition_key(), tuple(sorted((k, v if "MESSAGE_ID" not in k.upper() else "id") for k, v in m.properties().items()))) for m in drain(s.keep["dlq"]))
        both.do("dead", dead)
        both.do("subscriptions", lambda s: sorted(s.rest("GET", both.path(topic + "-s-DLQ") + "/subscriptions")[1]))
        both.do("stats", lambda s: _numbers(s.rest("GET", both.path(topic) + "/stats")[1], ("msgBacklog", "unackedMessages", "msgInCounter")), eventually=True)


def delayed(both):
    def step(s):
        c = s.client.subscribe(both.topic, "s", consumer_type=T.Shared)
        e = s.client.subscribe(both.topic, "e", consumer_type=T.Exclusive)
        k = s.client.subscribe(both.topic, "k", consumer_type=T.KeyShared)
        p = s.client.create_producer(both.topic)
        from datetime import timedelta
        p.send(b"late", deliver_after=timedelta(seconds=4))
        p.send(b"later", deliver_at=int(time.time() * 1000) + 6000)
        p.send(b"past", deliver_at=int(time.time() * 1000) - 6000)
        p.send(b"now")
        s.keep.update(c=c, e=e, k=k)
        return [m.data() for m in drain(c, 1500)], [m.data() for m in drain(e, 300)], [m.data() for m in drain(k, 300)]
    both.do("early", step)
    both.do("all", lambda s: [[m.data() for m in drain(s.keep[n], 6000)] for n in "cek"])


def partitions(both):
    both.do("create", lambda s: s.rest("PUT", both.path() + "/partitions", 3))
    both.do("again", lambda s: s.rest("PUT", both.path() + "/partitions", 3)[0])
    both.do("metadata", lambda s: s.rest("GET", both.path() + "/partitions"))
    both.do("client partitions", lambda s: [t[-12:] for t in s.client.get_topic_partitions(both.topic)])
    for routing in (pulsar.PartitionsRoutingMode.UseSinglePartition, pulsar.PartitionsRoutingMode.RoundRobinDistribution):
        for keys in (0, 4):
            def step(s):
                c = s.client.subscribe(both.topic, f"s-{routing}-{keys}".replace(".", "-"))
                _send(s, both.topic, 12, message_routing_mode=routing, keys=keys)
                got = drain(c)
                s.keep["c"] = c
                for m in got:
                    c.acknowledge(m)
                by = {}
                for m in got:
                    by.setdefault(m.message_id().partition(), []).append(m.data())
                return sorted(m.data() for m in got), by if keys else sorted(len(v) for v in by.values()), sorted({m.topic_name()[-12:] for m in got}) if keys else None
            both.do(f"{routing} {keys}", step)
    both.do("grow", lambda s: s.rest("POST", both.path() + "/partitions", 5))
    both.do("shrink", lambda s: s.rest("POST", both.path() + "/partitions", 2))
    both.do("metadata", lambda s: s.rest("GET", both.path() + "/partitions"))
    both.do("subscriptions", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions")))
    both.do("of the new partition", lambda s: s.rest("GET", both.path(both.topic + "-partition-4") + "/subscriptions"))
    both.do("new producer reaches all", lambda s: (_send(s, both.topic, 40), )[1:])
    both.do("partitioned stats", lambda s: _numbers(s.rest("GET", both.path() + "/partitioned-stats?perPartition=true")[1], ("msgBacklog", "type", "partitions")), eventually=True)
    both.do("partitioned stats shape", lambda s: _rename(_cut(shape(s.rest("GET", both.path() + "/partitioned-stats?perPartition=false")[1]))), eventually=True)
    both.do("list", lambda s: [t for t in s.rest("GET", "/admin/v2/persistent/public/default/partitioned")[1] if both.unique in t])
    both.do("list topics", lambda s: sorted(t for t in s.rest("GET", "/admin/v2/persistent/public/default")[1] if both.unique in t))
    both.do("ns topics", lambda s: sorted(t for t in s.rest("GET", "/admin/v2/namespaces/public/default/topics?mode=ALL")[1] if both.unique in t))
    both.do("delete as plain", lambda s: s.rest("DELETE", both.path())[0])
    both.do("delete in use", lambda s: s.rest("DELETE", both.path() + "/partitions")[0])
    both.do("produce to partition", lambda s: s.client.create_producer(both.topic + "-partition-1").send(b"x").partition())
    both.do("produce to a partition that is none", lambda s: s.client.create_producer(both.topic + "-partition-9").send(b"x").partition())
    both.do("force", lambda s: s.rest("DELETE", both.path() + "/partitions?force=true")[0])


def _sorted(answer):
    return answer[0], sorted(answer[1], key=str) if isinstance(answer[1], list) else answer[1]


def _cut(value):
    return value


def partitioned_growth_with_clients(both):
    both.do("create", lambda s: s.rest("PUT", both.path() + "/partitions", 1))
    both.do("lookup name", lambda s: s.rest("GET", "/lookup/v2/topic/" + both.topic.replace("://", "/") + "-partition-0")[0])
    both.do("sub", lambda s: s.keep.update(c=s.client.subscribe(both.topic, "s", consumer_type=T.Shared)))
    both.do("grow", lambda s: s.rest("POST", both.path() + "/partitions", 3))
    def step(s):
        _send(s, both.topic, 9)
        c = s.another_client().subscribe(both.topic, "s", consumer_type=T.Shared)
        got = drain(s.keep["c"], 1500) + drain(c, 1500)
        return sorted(m.data() for m in got)
    both.do("reads all", step)
    both.do("unsubscribe", lambda s: s.client.subscribe(both.topic, "t", consumer_type=T.Shared).unsubscribe())
    both.do("subs", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions")))


def regexes(both):
    base = both.topic
    def begin(s):
        for n in range(3):
            s.client.create_producer(f"{base}-{n}").send(b"early%d" % n)
        s.rest("PUT", both.path(f"{base}-p") + "/partitions", 2)
        s.client.create_producer(base.replace("persistent", "non-persistent") + "-np")
        s.keep["c"] = s.client.subscribe(re.compile(base + "-.*"), "s", initial_position=EARLY, pattern_auto_discovery_period=1)
        return sorted(m.data() for m in drain(s.keep["c"], 2000))
    both.do("begin", begin)
    both.do("later", lambda s: (s.client.create_producer(f"{base}-late").send(b"late"), s.client.create_producer(f"{base}-p").send(b"parted"))[2:])
    both.do("got", lambda s: sorted(m.data() for m in drain(s.keep["c"], 4000)))
    for mode in (RegexSubscriptionMode.AllTopics, RegexSubscriptionMode.NonPersistentOnly):
        def step(s):
            c = s.client.subscribe(re.compile("public/default/" + base.rsplit("/")[-1] + "-.*"), f"s{mode}".replace(".", "-"), initial_position=EARLY, regex_subscription_mode=mode, pattern_auto_discovery_period=1)
            s.client.create_producer(base.replace("persistent", "non-persistent") + "-np").send(b"np")
            return sorted(m.data() for m in drain(c, 2500))
        both.do(f"mode {mode}", step)
    both.do("deleted topic", lambda s: s.rest("DELETE", both.path(f"{base}-1") + "?force=true")[0])
    both.do("several topics", lambda s: sorted(m.data() for m in drain(s.client.subscribe([f"{base}-0", f"{base}-2", f"{base}-p"], "many", initial_position=EARLY), 1500)))
    both.do("unsubscribe pattern", lambda s: s.keep["c"].unsubscribe())


def access_modes(both):
    def step(s):
        a = s.client.create_producer(both.topic, access_mode=ProducerAccessMode.Exclusive, producer_name="a" + both.unique)
        s.keep["a"] = a
        return a.send(b"1") is not None
    both.do("exclusive", step)
    both.do("second exclusive", lambda s: s.client.create_producer(both.topic, access_mode=ProducerAccessMode.Exclusive) and None)
    both.do("shared beside", lambda s: s.client.create_producer(both.topic) and None)
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/stats")[1]))
    both.do("fencing", lambda s: s.keep.update(f=s.another_client().create_producer(both.topic, access_mode=ProducerAccessMode.ExclusiveWithFencing)))
    both.do("old one", lambda s: s.keep["a"].send(b"2") and None)
    both.do("new one", lambda s: s.keep["f"].send(b"3") and None)
    both.do("close", lambda s: s.keep["f"].close())
    both.do("wait for exclusive", lambda s: s.client.create_producer(both.topic, access_mode=ProducerAccessMode.WaitForExclusive).send(b"4") and None)
    both.do("read", lambda s: [m.data() for m in drain(s.client.create_reader(both.topic, pulsar.MessageId.earliest))])
    both.do("same name twice", lambda s: (s.client.create_producer(both.topic + "n", producer_name="n"), s.client.create_producer(both.topic + "n", producer_name="n"))[2:])


def non_persistent(both):
    topic = both.topic.replace("persistent", "non-persistent")
    for kind in (T.Exclusive, T.Shared, T.Failover, T.KeyShared):
        def step(s):
            c = s.client.subscribe(topic, f"s{kind}".replace(".", "-"), consumer_type=kind)
            p = s.client.create_producer(topic)
            ids = [p.send(b"x%d" % n, partition_key=f"{n}", properties={"a": str(n)}) for n in range(4)]
            got = drain(c)
            for m in got:
                c.acknowledge(m)
            c.redeliver_unacknowledged_messages()
            s.keep["c"] = c
            return [(i.ledger_id(), i.entry_id(), i.partition()) for i in ids], [seen(m) for m in got], [i[1:] for i in _ids(got)], [m.data() for m in drain(c, 300)]
        both.do(f"{kind}", step)
    both.do("stats", lambda s: _rename(_numbers(s.rest("GET", both.path(topic) + "/stats")[1])), eventually=True)
    both.do("shape", lambda s: _rename(shape(s.rest("GET", both.path(topic) + "/stats")[1])))
    both.do("internal", lambda s: _rename(shape(s.rest("GET", both.path(topic) + "/internalStats")[1])))
    both.do("seek", lambda s: s.keep["c"].seek(pulsar.MessageId.earliest))
    both.do("last id", lambda s: s.keep["c"].get_last_message_id() and None)
    both.do("reader", lambda s: s.client.create_reader(topic, pulsar.MessageId.earliest).has_message_available())
    for path in ("/subscriptions", "/partitions", "/lastMessageId", "/subscription/s/properties", "/retention", "/messageTTL"):
        both.do(path, lambda s: s.rest("GET", both.path(topic) + path)[0])
    both.do("unsubscribe", lambda s: s.keep["c"].unsubscribe())
    both.do("parted", lambda s: s.rest("PUT", both.path(topic) + "p/partitions", 2))
    both.do("parted use", lambda s: (s.keep.update(pc=s.client.subscribe(topic + "p", "s")), _send(s, topic + "p", 6), sorted(m.data() for m in drain(s.keep["pc"])))[2])
    both.do("terminate", lambda s: s.rest("POST", both.path(topic) + "/terminate")[0])
    both.do("delete", lambda s: s.rest("DELETE", both.path(topic))[0])
    both.do("delete force", lambda s: s.rest("DELETE", both.path(topic) + "?force=true")[0])


def subscriptions(both):
    def subscribe(name, kind=T.Exclusive, **o):
        return lambda s: s.keep.__setitem__(o.pop("key", name), s.client.subscribe(both.topic, name, consumer_type=kind, **o))
    both.do("send", lambda s: _send(s, both.topic, 5) and None)
    both.do("latest", subscribe("latest"))
    both.do("earliest", subscribe("earliest", initial_position=EARLY))
    both.do("send", lambda s: _send(s, both.topic, 2, 5) and None)
    both.do("got", lambda s: [[m.data() for m in drain(s.keep[k])] for k in ("latest", "earliest")])
    both.do("busy", lambda s: s.client.subscribe(both.topic, "latest") and None)
    for kind in (T.Shared, T.Failover, T.KeyShared):
        both.do(f"other type {kind}", lambda s: s.client.subscribe(both.topic, "latest", consumer_type=kind) and None)
    both.do("unsubscribe", lambda s: s.keep["latest"].unsubscribe())
    both.do("unsubscribe again", lambda s: s.keep["latest"].unsubscribe())
    both.do("receive of it", lambda s: s.keep["latest"].receive(timeout_millis=300))
    both.do("list", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions")))
    both.do("shared 1", subscribe("sh", T.Shared))
    both.do("shared 2", lambda s: s.keep.__setitem__("sh2", s.client.subscribe(both.topic, "sh", consumer_type=T.Shared)))
    both.do("unsubscribe with two", lambda s: s.keep["sh"].unsubscribe())
    both.do("admin delete", lambda s: s.rest("DELETE", both.path() + "/subscription/sh"))
    both.do("admin delete force", lambda s: s.rest("DELETE", both.path() + "/subscription/sh?force=true"))
    both.do("list", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions"))[0])
    both.do("empty name", lambda s: s.client.subscribe(both.topic, "") and None)
    both.do("strange name", lambda s: s.client.subscribe(both.topic, "a/b ü%?#") and None)
    both.do("list", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions"))[1], eventually=True)
    both.do("strange via admin", lambda s: s.rest("GET", both.path() + "/subscription/a%2Fb%20%C3%BC%25%3F%23/properties"))
    both.do("delete strange", lambda s: s.rest("DELETE", both.path() + "/subscription/a%2Fb%20%C3%BC%25%3F%23?force=true"))
    both.do("list", lambda s: _sorted(s.rest("GET", both.path() + "/subscriptions"))[1], eventually=True)
    for name in ("persistent://public/default/a b", "persistent://public/nowhere/x", "persistent://nobody/x/y", "persistent://public/default/x/y", "x://public/default/x", "persistent://public/default/", "a/b", "persistent://public/default/ü", "persistent://public/default/x-partition-0", "persistent://public/default/q-partition-abc", "__change_events"):
        both.do(f"topic {name}", lambda s: s.client.subscribe(name + ("" if "nobody" in name or name.endswith("/") or "__" in name else both.unique if not name[-1].isdigit() else ""), "s") and None)
        both.do(f"producer {name}", lambda s: s.client.create_producer(name + ("" if "nobody" in name or name.endswith("/") or "__" in name else both.unique if not name[-1].isdigit() else "")) and None)


def seeks(both):
    for batched in (False, True):
        topic = f"{both.topic}-{batched}"
        def begin(s):
            s.keep["c"] = s.client.subscribe(topic, "s", consumer_type=T.Exclusive, start_message_id_inclusive=False)
            s.keep["i"] = s.client.subscribe(topic, "i", consumer_type=T.Shared, start_message_id_inclusive=True)
            p = s.client.create_producer(topic, batching_enabled=batched, batching_max_messages=4, batching_max_publish_delay_ms=1000)
            _send(s, topic, 10, producer=p)
            time.sleep(0.05)
            _send(s, topic, 10, 10, producer=p)
            s.keep["got"] = drain(s.keep["c"])
            for m in drain(s.keep["i"]):
                s.keep["i"].acknowledge(m)
            s.keep["c"].acknowledge_cumulative(s.keep["got"][12])
            return [seen(m) for m in s.keep["got"]]
        both.do("begin", begin)
        for c in "ci":
            for at in (0, 5, 9, 13, 19):
                both.do(f"seek {c} {batched} {at}", lambda s: (s.keep[c].seek(s.keep["got"][at].message_id()), [seen(m) for m in drain(s.keep[c])])[1])
                both.do(f"stats {c} {at}", lambda s: _numbers(s.rest("GET", both.path(topic) + "/stats")[1], ("msgBacklog", "unackedMessages")), eventually=True)
            both.do("seek time", lambda s: (s.keep[c].seek(s.keep["got"][12].publish_timestamp()), [seen(m) for m in drain(s.keep[c])][-10:])[1][-1:])
            both.do("seek time 0", lambda s: (s.keep[c].seek(0), len(drain(s.keep[c])))[1])
            both.do("seek time far", lambda s: (s.keep[c].seek(1 << 45), len(drain(s.keep[c])))[1])
            both.do("earliest", lambda s: (s.keep[c].seek(pulsar.MessageId.earliest), len(drain(s.keep[c])))[1])
            both.do("latest", lambda s: (s.keep[c].seek(pulsar.MessageId.latest), len(drain(s.keep[c])))[1])
            both.do("beyond", lambda s: (s.keep[c].seek(pulsar.MessageId(-1, s.keep["got"][0].message_id().ledger_id(), 9999, -1)), len(drain(s.keep[c])))[1])
            both.do("last", lambda s: s.keep[c].get_last_message_id().batch_index())
            both.do("stats", lambda s: _numbers(s.rest("GET", both.path(topic) + "/stats")[1]), eventually=True)


def key_shared(both):
    from pulsar import ConsumerKeySharedPolicy as K, KeySharedMode as M
    def sub(s, name, policy=None, client=None, **o):
        return (client or s.client).subscribe(both.topic, name, consumer_type=T.KeyShared, key_shared_policy=policy, **o)
    both.do("sticky a", lambda s: s.keep.update(a=sub(s, "st", K(M.Sticky, sticky_ranges=[(0, 29999)]))))
    both.do("sticky b", lambda s: s.keep.update(b=sub(s, "st", K(M.Sticky, sticky_ranges=[(30000, 65535)]))))
    both.do("overlap", lambda s: sub(s, "st", K(M.Sticky, sticky_ranges=[(29999, 30000)])) and None)
    both.do("auto beside sticky", lambda s: sub(s, "st", K(M.AutoSplit)) and None)
    both.do("empty ranges", lambda s: sub(s, "st2", K(M.Sticky, sticky_ranges=[])) and None)
    both.do("out of range", lambda s: sub(s, "st2", K(M.Sticky, sticky_ranges=[(0, 65536)])) and None)
    both.do("auto", lambda s: s.keep.update(x=sub(s, "au"), y=sub(s, "au"), z=sub(s, "au", client=s.another_client())))
    both.do("out of order", lambda s: s.keep.update(o=sub(s, "oo", K(M.AutoSplit, True))))
    both.do("ordered beside out of order", lambda s: s.keep.update(o2=sub(s, "oo", K(M.AutoSplit, False))))
    def send(s):
        p = s.client.create_producer(both.topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased)
        for n in range(60):
            p.send_async(b"%d" % n, lambda *_: None, partition_key=f"key{n % 10}", ordering_key=f"ord{n % 7}" if n % 2 else None)
        p.flush()
        by = [[m.data() for m in drain(s.keep[k])] for k in "ab"]
        auto = {k: {m.ordering_key() or m.partition_key() for m in drain(s.keep[k], 500)} for k in "xyz"}
        return by, sorted(x for v in auto.values() for x in v), len(drain(s.keep["o"], 500))
    both.do("send", send)
    both.do("stats", lambda s: _sub(_numbers(s.rest("GET", both.path() + "/stats")[1]), "st"), eventually=True)
    both.do("leave", lambda s: (s.keep["a"].close(), [m.data() for m in drain(s.keep["b"])])[1])
    both.do("comes back", lambda s: (s.keep.update(a=sub(s, "st", K(M.Sticky, sticky_ranges=[(0, 100), (200, 29999)]))), [m.data() for m in drain(s.keep["a"])])[1])


def _sub(stats, name):
    return stats["subscriptions"][name]


def failover(both):
    both.do("three", lambda s: s.keep.update({n: s.another_client().subscribe(both.topic, "f", consumer_type=T.Failover, consumer_name=n) for n in ("b", "a", "c")}))
    both.do("send", lambda s: (_send(s, both.topic, 10), {n: [m.data() for m in drain(s.keep[n], 500)] for n in "abc"})[1])
    both.do("stats", lambda s: s.rest("GET", both.path() + "/stats")[1]["subscriptions"]["f"]["activeConsumerName"])
    both.do("close active", lambda s: (s.keep["a"].close(), {n: [seen(m) for m in drain(s.keep[n], 1500)] for n in "bc"})[1])
    both.do("stats", lambda s: s.rest("GET", both.path() + "/stats")[1]["subscriptions"]["f"]["activeConsumerName"])
    both.do("shared beside", lambda s: s.client.subscribe(both.topic, "f", consumer_type=T.Shared) and None)


def zero_queue(both):
    def step(s):
        c = s.client.subscribe(both.topic, "z", receiver_queue_size=0, consumer_type=T.Shared)
        _send(s, both.topic, 5)
        out = [c.receive().data() for _ in range(3)]
        d = s.client.subscribe(both.topic, "z", receiver_queue_size=1, consumer_type=T.Shared)
        return out, [m.data() for m in drain(d)]
    both.do("zero", step)
    both.do("partitioned", lambda s: (s.rest("PUT", both.path() + "-p/partitions", 2), s.client.subscribe(both.topic + "-p", "z", receiver_queue_size=0) and None)[1])


def terminated(both):
    both.do("produce", lambda s: s.keep.update(p=s.client.create_producer(both.topic), c=s.client.subscribe(both.topic, "s")) or [s.keep["p"].send(b"%d" % n) and None for n in range(3)])
    both.do("terminate", lambda s: s.rest("POST", both.path() + "/terminate")[0])
    both.do("terminate shape", lambda s: shape(s.rest("POST", both.path() + "/terminate")[1]))
    both.do("send", lambda s: s.keep["p"].send(b"x") and None)
    both.do("new producer", lambda s: s.client.create_producer(both.topic) and None)
    both.do("read", lambda s: [m.data() for m in drain(s.keep["c"])])
    both.do("new consumer", lambda s: [m.data() for m in drain(s.client.subscribe(both.topic, "late", initial_position=EARLY))])
    both.do("reader", lambda s: s.client.create_reader(both.topic, pulsar.MessageId.latest).has_message_available())
    both.do("stats", lambda s: _numbers(s.rest("GET", both.path() + "/stats")[1]))
    both.do("internal", lambda s: s.rest("GET", both.path() + "/internalStats")[1]["state"])
    both.do("unload", lambda s: s.rest("PUT", both.path() + "/unload")[0])
    both.do("new producer", lambda s: s.client.create_producer(both.topic) and None)
    both.do("truncate", lambda s: s.rest("DELETE", both.path() + "/truncate")[0])
    both.do("delete", lambda s: s.rest("DELETE", both.path() + "?force=true")[0])


def deduplication(both):
    ns = f"public/dedup-{both.unique}"
    both.do("ns", lambda s: s.rest("PUT", f"/admin/v2/namespaces/{ns}"))
    both.do("on", lambda s: s.rest("POST", f"/admin/v2/namespaces/{ns}/deduplication", True))
    topic = f"persistent://{ns}/t"
    def step(s):
        p = s.client.create_producer(topic, producer_name="d")
        out = [p.last_sequence_id()]
        for q in (1, 2, 2, 5, 4, 6):
            i = p.send(b"q%d" % q, sequence_id=q)
            out.append((i.entry_id(), p.last_sequence_id()))
        p.close()
        p = s.client.create_producer(topic, producer_name="d")
        out.append(p.last_sequence_id())
        out.append(p.send(b"again", sequence_id=6).entry_id())
        out.append(p.send(b"next").entry_id())
        out.append(p.last_sequence_id())
        return out, [m.data() for m in drain(s.client.create_reader(topic, pulsar.MessageId.earliest))]
    both.do("dedup", step)
    both.do("stats", lambda s: s.rest("GET", both.path(topic) + "/stats")[1]["deduplicationStatus"])
    both.do("unload", lambda s: s.rest("PUT", both.path(topic) + "/unload"))
    both.do("after", lambda s: s.client.create_producer(topic, producer_name="d").last_sequence_id())
    both.do("fresh name", lambda s: s.client.create_producer(topic, producer_name="e").last_sequence_id())


def encryption(both):
    ns = f"public/enc-{both.unique}"
    both.do("ns", lambda s: s.rest("PUT", f"/admin/v2/namespaces/{ns}"))
    both.do("on", lambda s: s.rest("POST", f"/admin/v2/namespaces/{ns}/encryptionRequired", True))
    both.do("plain producer", lambda s: s.client.create_producer(f"persistent://{ns}/t") and None)
    import subprocess, tempfile, os
    d = tempfile.mkdtemp()
    subprocess.run(["openssl", "genrsa", "-out", f"{d}/priv.pem", "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", f"{d}/priv.pem", "-pubout", "-out", f"{d}/pub.pem"], check=True, capture_output=True)
    def step(s):
        reader = pulsar.CryptoKeyReader(f"{d}/pub.pem", f"{d}/priv.pem")
        t = f"persistent://{ns}/t"
        c = s.client.subscribe(t, "s", crypto_key_reader=reader)
        blind = s.client.subscribe(t, "b", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
        none = s.client.subscribe(t, "n", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.DISCARD)
        p = s.client.create_producer(t, encryption_key="k", crypto_key_reader=reader, compression_type=pulsar.CompressionType.ZLib)
        p.send(b"secret" * 20, properties={"a": "b"})
        b = drain(blind)
        return [seen(m) for m in drain(c)], [(m.encryption_context().keys()[0].key, m.encryption_context().is_decryption_failed()) if m.encryption_context() else None for m in b], [m.data() for m in drain(none, 500)]
    both.do("encrypted", step)


def shared_many(both):
    def step(s):
        cs = [s.another_client().subscribe(both.topic, "s", consumer_type=T.Shared, receiver_queue_size=q) for q in (1, 3, 50)]
        _send(s, both.topic, 200, batching_enabled=True, batching_max_messages=7)
        got = []
        for _ in range(2):
            for c in cs:
                for m in drain(c, 400):
                    c.acknowledge(m)
                    got.append(m.data())
        return sorted(got)
    both.do("exactly once", step)
    both.do("stats", lambda s: [(c["unackedMessages"]) for c in s.rest("GET", both.path() + "/stats")[1]["subscriptions"]["s"]["consumers"]], eventually=True)


def batch_receive(both):
    def step(s):
        c = s.client.subscribe(both.topic, "s", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(5, 10000, 500))
        _send(s, both.topic, 12)
        return [[m.data() for m in c.batch_receive()] for _ in range(3)]
    both.do("batch", step)


def ack_timeout(both):
    def step(s):
        c = s.client.subscribe(both.topic, "s", consumer_type=T.Shared, unacked_messages_timeout_ms=10000)
        _send(s, both.topic, 4)
        got = drain(c)
        c.acknowledge(got[1])
        return [seen(m) for m in drain(c, 14000, most=3)]
    both.do("timeout", step)
