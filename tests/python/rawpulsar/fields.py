"""The wire messages of the Pulsar binary protocol that the tests use, as one compact table.

One line per message: `Name: number field kind | ...`. Kinds: u unsigned varint, i signed varint, b bool, s string,
y bytes, d double, e:ENUM, m:MESSAGE; `!` marks a required field, `*` a repeated one. Enums: `Name: number value | ...`.
Commands: `number TYPE Message`; the number is both the command type and the sub-message's field in BaseCommand.
`CommandMessage.message_permits` is PIP-491; Apache Pulsar 5.0 does not send it.
"""

MESSAGES = """
MessageIdData: 1 ledgerId u! | 2 entryId u! | 3 partition i | 4 batch_index i | 5 ack_set i* | 6 batch_size i | 7 first_chunk_message_id m:MessageIdData
KeyValue: 1 key s! | 2 value s!
KeyLongValue: 1 key s! | 2 value u!
IntRange: 1 start i! | 2 end i!
EncryptionKeys: 1 key s! | 2 value y! | 3 metadata m:KeyValue*
MessageMetadata: 1 producer_name s! | 2 sequence_id u! | 3 publish_time u! | 4 properties m:KeyValue* | 5 replicated_from s | 6 partition_key s | 7 replicate_to s* | 8 compression e:CompressionType | 9 uncompressed_size u | 11 num_messages_in_batch i | 12 event_time u | 13 encryption_keys m:EncryptionKeys* | 14 encryption_algo s | 15 encryption_param y | 16 schema_version y | 17 partition_key_b64_encoded b | 18 ordering_key y | 19 deliver_at_time i | 20 marker_type i | 22 txnid_least_bits u | 23 txnid_most_bits u | 24 highest_sequence_id u | 25 null_value b | 26 uuid s | 27 num_chunks_from_msg i | 28 total_chunk_msg_size i | 29 chunk_id i | 30 null_partition_key b | 31 compacted_batch_indexes i* | 32 schema_id y | 33 entry_hash_min u | 34 entry_hash_max u
SingleMessageMetadata: 1 properties m:KeyValue* | 2 partition_key s | 3 payload_size i! | 4 compacted_out b | 5 event_time u | 6 partition_key_b64_encoded b | 7 ordering_key y | 8 sequence_id u | 9 null_value b | 10 null_partition_key b
BrokerEntryMetadata: 1 broker_timestamp u | 2 index u
Schema: 1 name s! | 3 schema_data y! | 4 type e:Schema.Type! | 5 properties m:KeyValue*
FeatureFlags: 1 supports_auth_refresh b | 2 supports_broker_entry_metadata b | 3 supports_partial_producer b | 4 supports_topic_watchers b | 5 supports_get_partitioned_metadata_without_auto_creation b | 6 supports_repl_dedup_by_lid_and_eid b | 7 supports_topic_watcher_reconcile b | 8 supports_scalable_topics b | 9 supports_tc_metadata_discovery b
KeySharedMeta: 1 keySharedMode e:KeySharedMode! | 3 hashRanges m:IntRange* | 4 allowOutOfOrderDelivery b | 5 entryBucketDispatch b
AuthData: 1 auth_method_name s | 2 auth_data y
CommandConnect: 1 client_version s! | 2 auth_method e:AuthMethod | 3 auth_data y | 4 protocol_version i | 5 auth_method_name s | 6 proxy_to_broker_url s | 7 original_principal s | 8 original_auth_data s | 9 original_auth_method s | 10 feature_flags m:FeatureFlags | 11 proxy_version s
CommandConnected: 1 server_version s! | 2 protocol_version i | 3 max_message_size i | 4 feature_flags m:FeatureFlags
CommandAuthResponse: 1 client_version s | 2 response m:AuthData | 3 protocol_version i
CommandAuthChallenge: 1 server_version s | 2 challenge m:AuthData | 3 protocol_version i
CommandSubscribe: 1 topic s! | 2 subscription s! | 3 subType e:CommandSubscribe.SubType! | 4 consumer_id u! | 5 request_id u! | 6 consumer_name s | 7 priority_level i | 8 durable b | 9 start_message_id m:MessageIdData | 10 metadata m:KeyValue* | 11 read_compacted b | 12 schema m:Schema | 13 initialPosition e:CommandSubscribe.InitialPosition | 14 replicate_subscription_state b | 15 force_topic_creation b | 16 start_message_rollback_duration_sec u | 17 keySharedMeta m:KeySharedMeta | 18 subscription_properties m:KeyValue* | 19 consumer_epoch u
CommandPartitionedTopicMetadata: 1 topic s! | 2 request_id u! | 3 original_principal s | 4 original_auth_data s | 5 original_auth_method s | 6 metadata_auto_creation_enabled b
CommandPartitionedTopicMetadataResponse: 1 partitions u | 2 request_id u! | 3 response e:CommandPartitionedTopicMetadataResponse.LookupType | 4 error e:ServerError | 5 message s
CommandLookupTopic: 1 topic s! | 2 request_id u! | 3 authoritative b | 4 original_principal s | 5 original_auth_data s | 6 original_auth_method s | 7 advertised_listener_name s | 8 properties m:KeyValue*
CommandLookupTopicResponse: 1 brokerServiceUrl s | 2 brokerServiceUrlTls s | 3 response e:CommandLookupTopicResponse.LookupType | 4 request_id u! | 5 authoritative b | 6 error e:ServerError | 7 message s | 8 proxy_through_service_url b
CommandProducer: 1 topic s! | 2 producer_id u! | 3 request_id u! | 4 producer_name s | 5 encrypted b | 6 metadata m:KeyValue* | 7 schema m:Schema | 8 epoch u | 9 user_provided_producer_name b | 10 producer_access_mode e:ProducerAccessMode | 11 topic_epoch u | 12 txn_enabled b | 13 initial_subscription_name s
CommandProducerSuccess: 1 request_id u! | 2 producer_name s! | 3 last_sequence_id i | 4 schema_version y | 5 topic_epoch u | 6 producer_ready b
CommandSend: 1 producer_id u! | 2 sequence_id u! | 3 num_messages i | 4 txnid_least_bits u | 5 txnid_most_bits u | 6 highest_sequence_id u | 7 is_chunk b | 8 marker b | 9 message_id m:MessageIdData
CommandSendReceipt: 1 producer_id u! | 2 sequence_id u! | 3 message_id m:MessageIdData | 4 highest_sequence_id u
CommandSendError: 1 producer_id u! | 2 sequence_id u! | 3 error e:ServerError! | 4 message s!
CommandMessage: 1 consumer_id u! | 2 message_id m:MessageIdData! | 3 redelivery_count u | 4 ack_set i* | 5 consumer_epoch u | 6 message_permits u
CommandAck: 1 consumer_id u! | 2 ack_type e:CommandAck.AckType! | 3 message_id m:MessageIdData* | 4 validation_error e:CommandAck.ValidationError | 5 properties m:KeyLongValue* | 6 txnid_least_bits u | 7 txnid_most_bits u | 8 request_id u
CommandAckResponse: 1 consumer_id u! | 2 txnid_least_bits u | 3 txnid_most_bits u | 4 error e:ServerError | 5 message s | 6 request_id u
CommandFlow: 1 consumer_id u! | 2 messagePermits u!
CommandUnsubscribe: 1 consumer_id u! | 2 request_id u! | 3 force b
CommandSeek: 1 consumer_id u! | 2 request_id u! | 3 message_id m:MessageIdData | 4 message_publish_time u
CommandReachedEndOfTopic: 1 consumer_id u!
CommandActiveConsumerChange: 1 consumer_id u! | 2 is_active b
CommandCloseProducer: 1 producer_id u! | 2 request_id u! | 3 assignedBrokerServiceUrl s | 4 assignedBrokerServiceUrlTls s
CommandCloseConsumer: 1 consumer_id u! | 2 request_id u! | 3 assignedBrokerServiceUrl s | 4 assignedBrokerServiceUrlTls s
CommandRedeliverUnacknowledgedMessages: 1 consumer_id u! | 2 message_ids m:MessageIdData* | 3 consumer_epoch u
CommandSuccess: 1 request_id u! | 2 schema m:Schema
CommandError: 1 request_id u! | 2 error e:ServerError! | 3 message s!
CommandPing: 
CommandPong: 
CommandConsumerStats: 1 request_id u! | 4 consumer_id u!
CommandConsumerStatsResponse: 1 request_id u! | 2 error_code e:ServerError | 3 error_message s | 4 msgRateOut d | 5 msgThroughputOut d | 6 msgRateRedeliver d | 7 consumerName s | 8 availablePermits u | 9 unackedMessages u | 10 blockedConsumerOnUnackedMsgs b | 11 address s | 12 connectedSince s | 13 type s | 14 msgRateExpired d | 15 msgBacklog u | 16 messageAckRate d
CommandGetLastMessageId: 1 consumer_id u! | 2 request_id u!
CommandGetLastMessageIdResponse: 1 last_message_id m:MessageIdData! | 2 request_id u! | 3 consumer_mark_delete_position m:MessageIdData
CommandGetTopicsOfNamespace: 1 request_id u! | 2 namespace s! | 3 mode e:CommandGetTopicsOfNamespace.Mode | 4 topics_pattern s | 5 topics_hash s | 6 properties m:KeyValue*
CommandGetTopicsOfNamespaceResponse: 1 request_id u! | 2 topics s* | 3 filtered b | 4 topics_hash s | 5 changed b
CommandGetSchema: 1 request_id u! | 2 topic s! | 3 schema_version y
CommandGetSchemaResponse: 1 request_id u! | 2 error_code e:ServerError | 3 error_message s | 4 schema m:Schema | 5 schema_version y
CommandGetOrCreateSchema: 1 request_id u! | 2 topic s! | 3 schema m:Schema! | 4 producerName s
CommandGetOrCreateSchemaResponse: 1 request_id u! | 2 error_code e:ServerError | 3 error_message s | 4 schema_version y
CommandTcClientConnectRequest: 1 request_id u! | 2 tc_id u! | 3 scalable b
CommandTcClientConnectResponse: 1 request_id u! | 2 error e:ServerError | 3 message s
CommandNewTxn: 1 request_id u! | 2 txn_ttl_millis u | 3 tc_id u | 4 scalable b
CommandNewTxnResponse: 1 request_id u! | 2 txnid_least_bits u | 3 txnid_most_bits u | 4 error e:ServerError | 5 message s
CommandEndTxn: 1 request_id u! | 2 txnid_least_bits u | 3 txnid_most_bits u | 4 txn_action e:TxnAction | 5 scalable b
CommandEndTxnResponse: 1 request_id u! | 2 txnid_least_bits u | 3 txnid_most_bits u | 4 error e:ServerError | 5 message s
CommandWatchTopicList: 1 request_id u! | 2 watcher_id u! | 3 namespace s! | 4 topics_pattern s! | 5 topics_hash s
CommandWatchTopicListSuccess: 1 request_id u! | 2 watcher_id u! | 3 topic s* | 4 topics_hash s!
CommandWatchTopicUpdate: 1 watcher_id u! | 2 new_topics s* | 3 deleted_topics s* | 4 topics_hash s!
CommandWatchTopicListClose: 1 request_id u! | 2 watcher_id u!
"""

ENUMS = """
CompressionType: 0 NONE | 1 LZ4 | 2 ZLIB | 3 ZSTD | 4 SNAPPY
ProducerAccessMode: 0 Shared | 1 Exclusive | 2 WaitForExclusive | 3 ExclusiveWithFencing
ServerError: 0 UnknownError | 1 MetadataError | 2 PersistenceError | 3 AuthenticationError | 4 AuthorizationError | 5 ConsumerBusy | 6 ServiceNotReady | 7 ProducerBlockedQuotaExceededError | 8 ProducerBlockedQuotaExceededException | 9 ChecksumError | 10 UnsupportedVersionError | 11 TopicNotFound | 12 SubscriptionNotFound | 13 ConsumerNotFound | 14 TooManyRequests | 15 TopicTerminatedError | 16 ProducerBusy | 17 InvalidTopicName | 18 IncompatibleSchema | 19 ConsumerAssignError | 20 TransactionCoordinatorNotFound | 21 InvalidTxnStatus | 22 NotAllowedError | 23 TransactionConflict | 24 TransactionNotFound | 25 ProducerFenced
AuthMethod: 0 AuthMethodNone | 1 AuthMethodYcaV1 | 2 AuthMethodAthens
KeySharedMode: 0 AUTO_SPLIT | 1 STICKY
TxnAction: 0 COMMIT | 1 ABORT
Schema.Type: 0 None | 1 String | 2 Json | 3 Protobuf | 4 Avro | 5 Bool | 6 Int8 | 7 Int16 | 8 Int32 | 9 Int64 | 10 Float | 11 Double | 12 Date | 13 Time | 14 Timestamp | 15 KeyValue | 16 Instant | 17 LocalDate | 18 LocalTime | 19 LocalDateTime | 20 ProtobufNative | 21 AutoConsume | 22 External
CommandSubscribe.SubType: 0 Exclusive | 1 Shared | 2 Failover | 3 Key_Shared
CommandSubscribe.InitialPosition: 0 Latest | 1 Earliest
CommandPartitionedTopicMetadataResponse.LookupType: 0 Success | 1 Failed
CommandLookupTopicResponse.LookupType: 0 Redirect | 1 Connect | 2 Failed
CommandAck.AckType: 0 Individual | 1 Cumulative
CommandAck.ValidationError: 0 UncompressedSizeCorruption | 1 DecompressionError | 2 ChecksumMismatch | 3 BatchDeSerializeError | 4 DecryptionError
CommandGetTopicsOfNamespace.Mode: 0 PERSISTENT | 1 NON_PERSISTENT | 2 ALL
"""

COMMANDS = """
2 CONNECT CommandConnect
3 CONNECTED CommandConnected
4 SUBSCRIBE CommandSubscribe
5 PRODUCER CommandProducer
6 SEND CommandSend
7 SEND_RECEIPT CommandSendReceipt
8 SEND_ERROR CommandSendError
9 MESSAGE CommandMessage
10 ACK CommandAck
11 FLOW CommandFlow
12 UNSUBSCRIBE CommandUnsubscribe
13 SUCCESS CommandSuccess
14 ERROR CommandError
15 CLOSE_PRODUCER CommandCloseProducer
16 CLOSE_CONSUMER CommandCloseConsumer
17 PRODUCER_SUCCESS CommandProducerSuccess
18 PING CommandPing
19 PONG CommandPong
20 REDELIVER_UNACKNOWLEDGED_MESSAGES CommandRedeliverUnacknowledgedMessages
21 PARTITIONED_METADATA CommandPartitionedTopicMetadata
22 PARTITIONED_METADATA_RESPONSE CommandPartitionedTopicMetadataResponse
23 LOOKUP CommandLookupTopic
24 LOOKUP_RESPONSE CommandLookupTopicResponse
25 CONSUMER_STATS CommandConsumerStats
26 CONSUMER_STATS_RESPONSE CommandConsumerStatsResponse
27 REACHED_END_OF_TOPIC CommandReachedEndOfTopic
28 SEEK CommandSeek
29 GET_LAST_MESSAGE_ID CommandGetLastMessageId
30 GET_LAST_MESSAGE_ID_RESPONSE CommandGetLastMessageIdResponse
31 ACTIVE_CONSUMER_CHANGE CommandActiveConsumerChange
32 GET_TOPICS_OF_NAMESPACE CommandGetTopicsOfNamespace
33 GET_TOPICS_OF_NAMESPACE_RESPONSE CommandGetTopicsOfNamespaceResponse
34 GET_SCHEMA CommandGetSchema
35 GET_SCHEMA_RESPONSE CommandGetSchemaResponse
36 AUTH_CHALLENGE CommandAuthChallenge
37 AUTH_RESPONSE CommandAuthResponse
38 ACK_RESPONSE CommandAckResponse
39 GET_OR_CREATE_SCHEMA CommandGetOrCreateSchema
40 GET_OR_CREATE_SCHEMA_RESPONSE CommandGetOrCreateSchemaResponse
50 NEW_TXN CommandNewTxn
51 NEW_TXN_RESPONSE CommandNewTxnResponse
56 END_TXN CommandEndTxn
57 END_TXN_RESPONSE CommandEndTxnResponse
62 TC_CLIENT_CONNECT_REQUEST CommandTcClientConnectRequest
63 TC_CLIENT_CONNECT_RESPONSE CommandTcClientConnectResponse
64 WATCH_TOPIC_LIST CommandWatchTopicList
65 WATCH_TOPIC_LIST_SUCCESS CommandWatchTopicListSuccess
66 WATCH_TOPIC_UPDATE CommandWatchTopicUpdate
67 WATCH_TOPIC_LIST_CLOSE CommandWatchTopicListClose
"""
