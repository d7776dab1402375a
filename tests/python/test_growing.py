"""Partitioned topics that grow: who subscribed before gets what is published to the new partitions. And what statistics say of consumers."""

import pulsar
import pytest

from test_admin_topics import Admin, admin, path, payloads, until  # noqa: F401 (fixtures)


class TestAGrowingTopic:
    def test_has_its_subscriptions_on_the_new_partitions(self, admin, topic, path, client):
        admin.does("PUT", path + "/partitions", 1)
        client.subscribe(topic, "away", consumer_type=pulsar.ConsumerType.Shared).close()
        admin.does("PUT", path + "/subscription/told", {"ledgerId": -1, "entryId": -1, "properties": {"x": "y"}})
        admin.does("POST", path + "/partitions", 3)
        for index in (1, 2):
            assert sorted(admin.get(f"{path}-partition-{index}/subscriptions")) == ["away", "told"]
        assert admin.get(f"{path}-partition-2/subscription/told/properties") == {"x": "y"}
        producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
        sent = [f"m{n}" for n in range(9)]
        for payload in sent:
            producer.send(payload.encode())
        assert len({m for m in payloads(client.subscribe(topic, "away", consumer_type=pulsar.ConsumerType.Shared), 9)}) == 9

    def test_gives_what_one_partition_lacks_when_the_number_is_set_again(self, admin, topic, path):
        admin.does("PUT", path + "/partitions", 2)
        admin.does("PUT", path + "/subscription/both")
        admin.does("PUT", path + "-partition-0/subscription/first")
        admin.does("PUT", path + "-partition-1/subscription/second")
        admin.does("DELETE", path + "-partition-1/subscription/both")
        admin.does("POST", path + "/partitions", 2)
        assert sorted(admin.get(path + "-partition-0/subscriptions")) == ["both", "first"]
        assert sorted(admin.get(path + "-partition-1/subscriptions")) == ["both", "first", "second"]

    def test_leaves_readers_where_they_are(self, admin, topic, path, client):
        admin.does("PUT", path + "/partitions", 1)
        reader = client.create_reader(topic + "-partition-0", pulsar.MessageId.earliest)
        assert until("the reader", lambda: admin.get(path + "-partition-0/subscriptions"))
        admin.does("POST", path + "/partitions", 2)
        assert admin.get(path + "-partition-1/subscriptions") == []
        reader.close()

    @pytest.mark.restart
    def test_keeps_them_over_kill_9(self, make_broker, topic, path):
        process = make_broker().start()
        admin = Admin(process)
        admin.does("PUT", path + "/partitions", 1)
        admin.does("PUT", path + "/subscription/away")
        admin.does("POST", path + "/partitions", 4)
        process.kill()
        process.start()
        for index in range(4):
            assert admin.get(f"{path}-partition-{index}/subscriptions") == ["away"]


class TestStatistics:
    def test_have_the_properties_of_a_consumer(self, admin, topic, path, client):
        consumer = client.subscribe(topic, "s", properties={"zone": "a", "": "", "empty": ""})
        stats = admin.get(path + "/stats")
        assert stats["subscriptions"]["s"]["consumers"][0]["metadata"] == {"zone": "a", "": "", "empty": ""}
        consumer.close()

    @pytest.mark.parametrize("name", ["internal-configuration", "backlog-quota-check"])
    def test_brokers_have_no_clusters_of_these_names(self, admin, name):
        assert not isinstance(admin.call("GET", f"/admin/v2/brokers/{name}")[1], list)

    @pytest.mark.parametrize("name", [None, "named"])
    def test_of_a_partitioned_topic_count_a_producer_and_a_consumer_once(self, admin, topic, path, client, name):
        admin.does("PUT", path + "/partitions", 3)
        producers = [client.create_producer(topic, producer_name=name and f"{name}-{n}") for n in range(2)]
        consumers = [client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name=name and f"{name}-{n}") for n in range(2)]
        stats = admin.get(path + "/partitioned-stats")
        assert len(stats["publishers"]) == 2
        assert len(stats["subscriptions"]["s"]["consumers"]) == 2
        for client_side in producers + consumers:
            client_side.close()


class TestWhatIsNotMade:
    def test_a_partition_beyond_the_last_is_not_found_over_http(self, admin, topic, path):
        admin.does("PUT", path + "/partitions", 2)
        lookup = path.replace("/admin/v2/", "/lookup/v2/topic/")
        admin.does("GET", lookup + "-partition-1", status=200)
        admin.does("GET", lookup + "-partition-2", status=404)
        admin.does("GET", path + "-partition-2/partitions?checkAllowAutoCreation=true", status=404)

    def test_a_subscription_over_the_limit_is_refused_over_http(self, admin, topic, path):
        namespace = f"public/limit-{topic[-8:]}"
        admin.does("PUT", f"/admin/v2/namespaces/{namespace}")
        admin.does("POST", f"/admin/v2/namespaces/{namespace}/maxSubscriptionsPerTopic", 1)
        at = f"/admin/v2/persistent/{namespace}/t"
        admin.does("PUT", at)
        admin.does("PUT", at + "/subscription/a")
        admin.does("PUT", at + "/subscription/b", status=409)
        assert admin.get(at + "/subscriptions") == ["a"]
