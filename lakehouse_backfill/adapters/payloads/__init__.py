"""Payloads with Confluent's header: Avro, Protobuf and JSON, by the schemas of their writers."""
