"""Topic names and lookups."""

import pulsar
import pytest

INVALID = ["persistent://public/default", "persistent://a/b/c/d", "unknown://public/default/x", "persistent://public/default/", "a/b"]


def test_lookup_answers_with_the_broker_itself(raw, topic):
    found = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert found["response"] == "Connect"
    assert found["authoritative"] is True
    assert found["brokerServiceUrl"].startswith("pulsar://")


def test_a_new_topic_has_no_partitions(raw, topic):
    answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic, metadata_auto_creation_enabled=True)
    assert answer["response"] == "Success"
    assert answer.get("partitions", 0) == 0


@pytest.mark.parametrize("name", INVALID)
class TestInvalidTopicNamesAreRefused:
    def test_by_lookup(self, raw, name):
        answer = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=name)
        assert (answer["response"], answer["error"]) == ("Failed", "InvalidTopicName")

    def test_by_partitioned_metadata(self, raw, name):
        answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=name)
        assert (answer["response"], answer["error"]) == ("Failed", "InvalidTopicName")

    def test_by_producer(self, raw, name):
        assert raw.request("PRODUCER", "ERROR", topic=name, producer_id=1)["error"] == "InvalidTopicName"
        raw.expect_alive()

    def test_by_subscribe(self, raw, name):
        answer = raw.request("SUBSCRIBE", "ERROR", topic=name, subscription="s", subType="Shared", consumer_id=1)
        assert answer["error"] == "InvalidTopicName"
        raw.expect_alive()


@pytest.mark.parametrize("name", ["persistent://public/no-such-namespace/t", "persistent://no-such-tenant/ns/t"])
def test_a_missing_namespace_fails_the_lookup(raw, name):
    answer = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=name)
    assert (answer["response"], answer["error"]) == ("Failed", "TopicNotFound")
    answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=name)
    assert (answer["response"], answer["error"]) == ("Failed", "TopicNotFound")


def test_a_missing_namespace_fails_the_official_client(make_client):
    client = make_client(operation_timeout_seconds=3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/no-such-namespace/t")


def test_short_names_mean_persistent_public_default(client, topic):
    local = topic.rsplit("/", 1)[1]
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(local)
    assert producer.topic() == topic
    producer.send(b"by the short name")
    client.create_producer(f"public/default/{local}").send(b"by tenant and namespace")
    assert consumer.receive(60_000).data() == b"by the short name"
    assert consumer.receive(60_000).data() == b"by tenant and namespace"


def test_subscribing_without_leave_to_create_fails_on_a_missing_topic(raw, topic):
    answer = raw.request(
        "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Shared", consumer_id=1, force_topic_creation=False)
    assert answer["error"] == "TopicNotFound"
