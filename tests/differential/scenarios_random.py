"""Random sequences of what clients do, the same on both sides."""

import time

import pulsar
from pulsar import ConsumerType as T, InitialPosition as P

from harness import drain, seen
from scenarios_basic import _numbers

KINDS = [T.Exclusive, T.Shared, T.Failover, T.KeyShared]
COUNTED = ("msgBacklog", "unackedMessages", "type", "isDurable", "subscriptions", "consumers", "msgInCounter", "publishers")


def random_clients(both):
    r = both.random
    parts = r.choice([0, 0, 0, 2])
    state = {"sent": 0, "consumers": {}}
    if parts:
        both.do("partitioned", lambda s: s.rest("PUT", both.path() + "/partitions", parts))
    else:
        both.do("topic", lambda s: s.rest("PUT", both.path()))
    for scope in both.scopes:
        scope.keep.update(c={}, got={}, ids=[], p={}, all=[])

    def order(messages, kind):
        return messages if kind in (T.Exclusive, T.Failover) and not parts else sorted(messages)

    def produce():
        batch = r.choice([None, 3, 10])
        n, compress, keys = r.randint(1, 25), r.choice(list(range(5))), r.choice([0, 0, 3])
        kind = r.choice([pulsar.BatchingType.Default, pulsar.BatchingType.KeyBased]) if keys else pulsar.BatchingType.Default
        key = (batch, compress, kind)
        first = state["sent"]
        state["sent"] += n
        codec = [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY][compress]

        def step(s):
            if key not in s.keep["p"]:
                options = {"batching_enabled": True, "batching_max_messages": batch, "batching_max_publish_delay_ms": 2000, "batching_type": kind} if batch else {}
                s.keep["p"][key] = s.client.create_producer(both.topic, compression_type=codec, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, **options)
            results = []
            for i in range(first, first + n):
                s.keep["p"][key].send_async(b"%06d" % i, lambda res, mid, i=i: (results.append(str(res)), s.keep["ids"].append((i, mid))),
                                            partition_key=f"k{i % keys}" if keys else f"u{i}" if parts else None, event_timestamp=i + 1, properties={"i": str(i)})
            s.keep["p"][key].flush()
            deadline = time.time() + 10
            while len(results) < n and time.time() < deadline:
                time.sleep(0.01)
            s.keep["ids"].sort(key=lambda x: x[0])
            return sorted(results)
        both.do(f"produce {n} {key} keys {keys}", step)

    def subscribe():
        name, kind = f"s{r.randint(0, 2)}", r.choice(KINDS)
        key = f"{name}-{r.randint(0, 1)}"
        if key in state["consumers"]:
            return
        initial, queue, bia = r.choice([P.Earliest, P.Latest]), r.choice([1, 2, 10, 1000]), r.random() < 0.5
        if parts and queue < 10:
            queue = 10

        def step(s):
            s.keep["c"][key] = s.another_client().subscribe(both.topic, name, consumer_type=kind, initial_position=initial, receiver_queue_size=queue, batch_index_ack_enabled=bia,
                                                    negative_ack_redelivery_delay_ms=100, consumer_name=key)
            s.keep["got"][key] = {}
        result = both.do(f"subscribe {key} {kind} {initial} queue {queue} bia {bia}", step)
        if result[0] is None and result[1] is None:
            state["consumers"][key] = (name, kind)

    def read(name=None):
        for sub in sorted({n for n, _ in state["consumers"].values()}) if name is None else [name]:
            keys = sorted(k for k, (n, _) in state["consumers"].items() if n == sub)
            kind = state["consumers"][keys[0]][1]

            def step(s):
                found = []
                rounds = 0
                while rounds < 6:
                    rounds += 1
                    before = len(found)
                    for key in keys:
                        for m in drain(s.keep["c"][key], 500, first=(6000 if both.kill else 1500) if rounds == 1 else 500):
                            s.keep["got"][key][m.data()] = m
                            found.append(seen(m, count=len(keys) == 1))
                    if len(found) == before:
                        break
                return order(found, kind)
            both.do(f"read {sub} by {keys}", step)

    def ack():
        if not state["consumers"]:
            return
        key = r.choice(sorted(state["consumers"]))
        name, kind = state["consumers"][key]
        keys = sorted(k for k, (n, _) in state["consumers"].items() if n == name)
        modulo, rest, mode = r.randint(1, 4), r.randint(0, 3), r.choice(["individual", "individual", "cumulative", "nack"])
        cut = r.randint(0, max(1, state["sent"]))
        if parts and mode == "cumulative":
            mode = "individual"

        def step(s):
            done = 0
            for k in keys:
                for data in sorted(s.keep["got"][k]):
                    number = int(data)
                    message = s.keep["got"][k][data]
                    if mode == "cumulative":
                        continue
                    if number % modulo == rest % modulo:
                        (s.keep["c"][k].negative_acknowledge if mode == "nack" else s.keep["c"][k].acknowledge)(message)
                        s.keep["got"][k].pop(data)
                        done += 1
            if mode == "cumulative":
                mine = sorted(d for d in s.keep["got"][key] if int(d) <= cut)
                if mine:
                    s.keep["c"][key].acknowledge_cumulative(s.keep["got"][key][mine[-1]])
                    for d in mine:
                        s.keep["got"][key].pop(d)
                    return mine[-1]
            return done
        if mode == "cumulative" and kind in (T.Exclusive, T.Failover) and len(keys) > 1:
            return
        both.do(f"{mode} {keys} {modulo} {rest} {cut}", step)
        if mode == "nack":
            time.sleep(0.4)
            read(name)

    def leave():
        if not state["consumers"]:
            return
        key = r.choice(sorted(state["consumers"]))
        how = r.choice(["close", "close", "unsubscribe"])
        name, kind = state["consumers"][key]
        result = both.do(f"{how} {key}", lambda s: s.keep["c"][key].close() if how == "close" else s.keep["c"][key].unsubscribe())
        if how == "close" or result[0] is None:
            state["consumers"].pop(key)

    def redeliver():
        if not state["consumers"]:
            return
        key = r.choice(sorted(state["consumers"]))
        # What is on its way to the client may come once or twice.
        read(state["consumers"][key][0])
        both.do(f"redeliver {key}", lambda s: s.keep["c"][key].redeliver_unacknowledged_messages())
        time.sleep(0.2)
        read(state["consumers"][key][0])

    def seek():
        if not state["consumers"] or parts or not state["sent"]:
            return
        key = r.choice(sorted(state["consumers"]))
        keys = [k for k, (n, _) in state["consumers"].items() if n == state["consumers"][key][0]]
        at = r.choice([pulsar.MessageId.earliest, pulsar.MessageId.latest, r.randrange(state["sent"])])

        def step(s):
            if isinstance(at, int):
                target = [m for i, m in s.keep["ids"] if i == at]
                if not target:
                    return "none"
                s.keep["c"][key].seek(target[0])
            else:
                s.keep["c"][key].seek(at)
            for k in keys:
                s.keep["got"][k].clear()
        both.do(f"seek {key} {at if isinstance(at, int) else ''}", step)
        time.sleep(0.5)
        read(state["consumers"][key][0])

    def admin():
        what = r.choice(["skip", "skip_all", "reset", "expire", "unload", "delete", "peek", "unload"])
        sub = f"s{r.randint(0, 2)}"
        attached = any(n == sub for n, _ in state["consumers"].values())
        path = both.path() + f"/subscription/{sub}"
        if what in ("skip", "skip_all", "expire") and attached:
            return  # Vela closes the consumers, Pulsar does not: documented.
        if what == "skip":
            n = r.randint(1, 9)
            both.do(f"skip {sub} {n}", lambda s: s.rest("POST", path + f"/skip/{n}")[0])
        elif what == "skip_all":
            both.do(f"skip all {sub}", lambda s: s.rest("POST", path + "/skip_all")[0])
        elif what == "reset" and not attached:
            both.do(f"reset {sub}", lambda s: s.rest("POST", path + "/resetcursor/0")[0])
        elif what == "expire":
            both.do(f"expire {sub}", lambda s: s.rest("POST", path + "/expireMessages/100000")[0])
        elif what == "delete":
            force = r.choice(["", "?force=true"])
            if force and attached:
                return
            both.do(f"delete {sub} {force}", lambda s: s.rest("DELETE", path + force)[0])
        elif what == "peek" and sub in [x for x, _ in state["consumers"].values()] and not parts:
            both.do(f"peek {sub}", lambda s: s.rest("GET", path + "/position/1")[0])
        elif what == "unload":
            if both.kill:
                time.sleep(1)  # Acks without a receipt are on their way.
                both.disturb()
                time.sleep(3)
            else:
                both.do("unload", lambda s: s.rest("PUT", both.path() + "/unload")[0])
                time.sleep(1)
            for scope in both.scopes:
                for got in scope.keep["got"].values():
                    got.clear()
            read()

    def reader():
        at = r.choice([None, r.randrange(state["sent"]) if state["sent"] and not parts else None])
        inclusive = r.random() < 0.5

        def step(s):
            start = pulsar.MessageId.earliest if at is None else ([m for i, m in s.keep["ids"] if i == at] or [pulsar.MessageId.earliest])[0]
            reader = s.client.create_reader(both.topic, start, start_message_id_inclusive=inclusive, receiver_queue_size=5)
            got = []
            while reader.has_message_available():
                got.append(seen(reader.read_next(timeout_millis=5000), count=False))
            reader.close()
            return sorted(got) if parts else got
        both.do(f"reader {at} {inclusive}", step)

    def stats():
        def step(s):
            kind = "partitioned-stats?perPartition=true" if parts else "stats"
            found = _numbers(s.rest("GET", both.path() + "/" + kind)[1], COUNTED)
            for each in [found, *found.get("partitions", {}).values()]:
                for sub in each["subscriptions"].values():
                    # Of what nobody reads, Pulsar forgets the type when the topic is unloaded.
                    if not sub["consumers"]:
                        sub.pop("type")
            return found
        time.sleep(0.3)
        both.do("stats", step, eventually=True)

    # Topics without a subscription are trimmed when Pulsar likes.
    both.do("keep", lambda s: s.rest("PUT", both.path() + "/subscription/keeper", {"ledgerId": -1, "entryId": -1})[0])
    actions = [(produce, 5), (subscribe, 5), (read, 5), (ack, 7), (leave, 2), (redeliver, 2), (seek, 2), (admin, 4), (reader, 1), (stats, 4)]
    for _ in range(28):
        r.choices([a for a, _ in actions], [w for _, w in actions])[0]()
        if len(both.differences) > 4:
            break
    read()
    stats()


random_clients.seeded = True
