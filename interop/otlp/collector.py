"""A collector that OpenTelemetry's own protobufs and grpcio make: it prints its address,
and each span that it takes as a line of JSON."""

import json
from concurrent import futures

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def value(v):
    kind = v.WhichOneof("value")
    return getattr(v, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_spans:
            of = {a.key: value(a.value) for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for s in scope.spans:
                    print(json.dumps({
                        "service": of.get("service.name"), "schema": scope.schema_url, "scope": scope.scope.name,
                        "trace": s.trace_id.hex(), "span": s.span_id.hex(), "parent": s.parent_span_id.hex(), "state": s.trace_state,
                        "name": s.name, "kind": s.kind, "start": s.start_time_unix_nano, "end": s.end_time_unix_nano, "status": s.status.code,
                        "attributes": {a.key: value(a.value) for a in s.attributes},
                    }), flush=True)
        return trace_service_pb2.ExportTraceServiceResponse()


server = grpc.server(futures.ThreadPoolExecutor(2))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(json.dumps({"port": port}), flush=True)
server.wait_for_termination()
