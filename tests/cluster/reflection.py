"""Calls of a service of which nothing is known but its address: by gRPC's server reflection."""

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

_SERVICE = "grpc.reflection.v1alpha.ServerReflection"
_STRING, _BYTES, _MESSAGE = 9, 12, 11
_ONE, _MANY = 1, 3


def _message(file, name, *fields):
    """`fields`: (number, label, type, name), and of messages the name of theirs."""
    message = file.message_type.add(name=name)
    for number, label, kind, field, *type_name in fields:
        entry = message.field.add(name=field, number=number, label=label, type=kind)
        if type_name:
            (entry.type_name,) = type_name


def _reflection_file():
    """What of reflection.proto is used here; unknown fields are ignored."""
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="r", syntax="proto3")
    _message(
        file,
        "Request",
        (4, _ONE, _STRING, "file_containing_symbol"),
        (7, _ONE, _STRING, "list_services"),
    )
    _message(file, "Files", (1, _MANY, _BYTES, "file_descriptor_proto"))
    _message(file, "Service", (1, _ONE, _STRING, "name"))
    _message(file, "Services", (1, _MANY, _MESSAGE, "service", ".r.Service"))
    _message(
        file,
        "Response",
        (4, _ONE, _MESSAGE, "files", ".r.Files"),
        (6, _ONE, _MESSAGE, "services", ".r.Services"),
    )
    return file


class Reflection:
    """The services of a channel."""

    def __init__(self, channel):
        self.channel = channel
        own = descriptor_pool.DescriptorPool()
        own.Add(_reflection_file())
        request, response = (
            message_factory.GetMessageClass(own.FindMessageTypeByName(f"r.{name}"))
            for name in ("Request", "Response")
        )
        self._request = request
        self._call = channel.stream_stream(
            f"/{_SERVICE}/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        self.pool = descriptor_pool.DescriptorPool()
        self._known = set()

    def _ask(self, **fields):
        return next(iter(self._call(iter([self._request(**fields)]))))

    def services(self):
        return [service.name for service in self._ask(list_services="*").services.service]

    def service(self, name):
        """Its descriptor, with all the files that it needs."""
        answer = self._ask(file_containing_symbol=name)
        files = {}
        for data in answer.files.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        for file in files.values():
            self._add(file, files)
        return self.pool.FindServiceByName(name)

    def _add(self, file, files):
        if file.name in self._known:
            return
        self._known.add(file.name)
        for needed in file.dependency:
            self._add(files[needed], files)
        self.pool.Add(file)

    def call(self, service, method, request):
        """The replies of a call, as a list of what their JSON is. `request` is such a dict, too."""
        known = self.service(service).methods_by_name[method]
        input_type, output_type = (
            message_factory.GetMessageClass(kind) for kind in (known.input_type, known.output_type)
        )
        make = self.channel.unary_stream if known.server_streaming else self.channel.unary_unary
        call = make(
            f"/{service}/{method}",
            request_serializer=input_type.SerializeToString,
            response_deserializer=output_type.FromString,
        )
        message = json_format.ParseDict(request, input_type(), descriptor_pool=self.pool)
        answer = call(message)
        replies = answer if known.server_streaming else [answer]
        return [json_format.MessageToDict(r, descriptor_pool=self.pool) for r in replies]
