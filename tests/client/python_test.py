#!/usr/bin/env python3
"""The Python clients against a coordinator of the test's own, which breaks when told.

python_test.py        tests/cluster/clients_test.py has the real one
"""

import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from reward_server import build_package

JOB = {
    "name": "job",
    "method": {"sft": {"max_length": 64, "packing": True}},
    "model": {"path": "models/m"},
    "data": {"train": "a.jsonl", "mixture": [{"path": ["b.jsonl"], "weight": 2}]},
    "training": {"learning_rate": 1, "save_strategy": "no", "output_dir": "/out"},
    "resources": {"hang_timeout": 1.5},
}


def events(first, last):
    return [tessera.Event(revision=revision) for revision in range(first, last + 1)]


class Coordinator:
    """A server whose methods are functions of the test: (request, context) -> reply."""

    def __init__(self, address, credentials=None, **methods):
        self.metadata = []
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self._handlers(methods),))
        if credentials is None:
            self.server.add_insecure_port(address)
        else:
            self.port = self.server.add_secure_port(address, credentials)
        self.server.start()

    def _handlers(self, methods):
        table = {
            method.path.rpartition("/")[2]: method
            for method in vars(requests).values()
            if isinstance(method, requests.Method)
        }

        def handler(name, function):
            def noted(request, context):
                self.metadata.append(dict(context.invocation_metadata()))
                return function(request, context)

            streams = table[name].seconds is None
            make = (
                grpc.unary_stream_rpc_method_handler
                if streams
                else grpc.unary_unary_rpc_method_handler
            )
            return make(
                noted,
                request_deserializer=table[name].request.FromString,
                response_serializer=table[name].response.SerializeToString,
            )

        handlers = {name: handler(name, function) for name, function in methods.items()}
        return grpc.method_handlers_generic_handler("tessera.v1.Coordinator", handlers)

    def stop(self):
        self.server.stop(None).wait()


def get_job(request, context):
    return pb.GetJobResponse(job=pb.Job(id=request.id, state=pb.Job.SUCCEEDED))


class ClientTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.address = f"unix:{self.directory}/s.sock"

    def serve(self, **methods):
        server = Coordinator(self.address, GetJob=get_job, **methods)
        self.addCleanup(server.stop)
        return server

    def client(self, **options):
        client = tessera.Client(self.address, **options)
        self.addCleanup(client.close)
        return client

    def test_watch_goes_on_where_a_stream_broke(self):
        starts = []

        def watch(request, context):
            starts.append(request.start_revision)
            first = max(request.start_revision, 1)
            # The first event is one that was seen: a service may repeat itself.
            for event in events(max(first - 1, 1), min(first + 2, 10)):
                yield pb.WatchJobResponse(event=event)
            if first + 2 < 10:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken")

        self.serve(WatchJob=watch)
        self.assertEqual([e.revision for e in self.client().watch("j")], [*range(1, 11)])
        self.assertEqual(starts, [0, 4, 7, 10])

        async def follow():
            async with tessera.AsyncClient(self.address) as client:
                return [event.revision async for event in client.watch("j")]

        self.assertEqual(asyncio.run(follow()), [*range(1, 11)])

    def test_watch_waits_for_a_service_that_comes_back(self):
        def watch(request, context):
            if request.start_revision == 0:
                yield pb.WatchJobResponse(event=tessera.Event(revision=1))
                context.abort(grpc.StatusCode.UNAVAILABLE, "going")
            yield pb.WatchJobResponse(event=tessera.Event(revision=2))

        first = self.serve(WatchJob=watch)
        stream = self.client().watch("j")
        self.assertEqual(next(stream).revision, 1)
        first.stop()
        with ThreadPoolExecutor(1) as others:
            rest = others.submit(lambda: [event.revision for event in stream])
            self.serve(WatchJob=watch)
            self.assertEqual(rest.result(60), [2])

    def test_a_closed_watch_ends_the_call(self):
        ended = ThreadPoolExecutor(1)
        self.addCleanup(ended.shutdown)
        over = []

        def watch(request, context):
            context.add_callback(lambda: over.append(True))
            yield pb.WatchJobResponse(event=tessera.Event(revision=1))
            while context.is_active():
                yield pb.WatchJobResponse(event=tessera.Event(revision=request.start_revision))

        server = self.serve(WatchJob=watch)
        stream = self.client().watch("j")
        next(stream)
        stream.close()
        server.stop()
        self.assertEqual(over, [True])

    def test_errors_have_violations_reasons_and_hints(self):
        def submit(request, context):
            details = status_pb2.Status(code=3, message="bad")
            bad = error_details_pb2.BadRequest()
            bad.field_violations.add(field="training.seed", description="training.seed is 1, ...")
            details.details.add().Pack(bad)
            info = error_details_pb2.ErrorInfo(reason="BAD_SPEC", domain="tessera")
            details.details.add().Pack(info)
            context.set_trailing_metadata(
                (("grpc-status-details-bin", details.SerializeToString()),)
            )
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad")

        self.serve(SubmitJob=submit)
        with self.assertRaises(tessera.InvalidJobError) as caught:
            self.client().submit(JOB)
        error = caught.exception
        self.assertEqual(error.reason, "BAD_SPEC")
        self.assertEqual(
            error.violations, (tessera.Violation("training.seed", "training.seed is 1, ..."),)
        )
        self.assertIn("training.seed is 1", str(error))

    def test_each_code_has_its_class(self):
        codes = {
            grpc.StatusCode.NOT_FOUND: tessera.NotFoundError,
            grpc.StatusCode.ALREADY_EXISTS: tessera.AlreadyExistsError,
            grpc.StatusCode.FAILED_PRECONDITION: tessera.RefusedError,
            grpc.StatusCode.UNAUTHENTICATED: tessera.UnauthenticatedError,
            grpc.StatusCode.PERMISSION_DENIED: tessera.PermissionDeniedError,
            grpc.StatusCode.INTERNAL: tessera.TesseraError,
        }
        code = None
        self.serve(CancelJob=lambda request, context: context.abort(code, "no"))
        client = self.client()
        for code, kind in codes.items():
            with self.assertRaises(tessera.TesseraError) as caught:
                client.cancel("j")
            self.assertIs(type(caught.exception), kind)
            self.assertEqual(caught.exception.code, code)

    def test_a_service_that_is_not_there(self):
        with self.assertRaises(tessera.UnreachableError) as caught:
            self.client(patience=0).get("j")
        self.assertIn("tessera up", caught.exception.hint)
        self.assertIsInstance(caught.exception, ConnectionError)

    def test_submit_carries_one_request_id(self):
        seen = []

        def submit(request, context):
            seen.append(request.request_id)
            if len(seen) < 3:
                context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
            return pb.SubmitJobResponse(job=pb.Job(id="j"))

        self.serve(SubmitJob=submit)
        self.assertEqual(self.client().submit(JOB).id, "j")
        self.assertEqual(len(seen), 3)
        self.assertEqual(len(set(seen)), 1)

    def test_list_goes_through_pages(self):
        def list_jobs(request, context):
            first = int(request.page_token or 0)
            jobs = [pb.Job(id=str(first + i)) for i in range(2)]
            return pb.ListJobsResponse(jobs=jobs, next_page_token=str(first + 2))

        self.serve(ListJobs=list_jobs)
        jobs = self.client().list(["running", tessera.State.FAILED], limit=5)
        self.assertEqual([job.id for job in jobs], ["0", "1", "2", "3", "4"])

    def test_completions_in_order(self):
        def generate(request, context):
            for prompt, text in ((1, "c"), (0, "a"), (1, "d"), (0, "b")):
                yield GenerateReply(text={"prompt": prompt, "completion": 0, "text": text})

        self.serve(Generate=generate)
        self.assertEqual(
            self.client().complete(["x", [{"role": "user", "content": "y"}]], job="j"),
            ["ab", "cd"],
        )
        with self.assertRaises(TypeError):
            self.client().complete(["x"], job="j", no_such=1)
        with self.assertRaises(ValueError):
            self.client().complete(["x"])

    def test_token_and_tls(self):
        key, certificate = self.directory / "key.pem", self.directory / "cert.pem"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", key, "-out", certificate]
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
        pair = (key.read_bytes(), certificate.read_bytes())
        server = Coordinator("localhost:0", grpc.ssl_server_credentials([pair]), GetJob=get_job)
        self.addCleanup(server.stop)
        address = f"localhost:{server.port}"
        with tessera.Client(address, ca_file=certificate, token="t0k") as client:
            self.assertEqual(client.get("j").id, "j")
        self.assertEqual(server.metadata[0]["authorization"], "Bearer t0k")
        token = self.directory / "token"
        token.write_text("of-a-file\n")
        own = {"TESSERA_CA": str(certificate), "TESSERA_TOKEN_FILE": str(token)}
        environment = mock.patch.dict(os.environ, own | {"TESSERA_ADDRESS": address})
        with environment, tessera.Client() as client:
            self.assertEqual(client.get("j").id, "j")
        self.assertEqual(server.metadata[1]["authorization"], "Bearer of-a-file")
        with tessera.Client(address, token="t0k", patience=0) as plain:
            self.assertRaises(tessera.UnreachableError, plain.get, "j")

    def test_other_machines_want_encryption(self):
        with self.assertRaisesRegex(ValueError, "must be unix:PATH or of this machine"):
            tessera.Client("example.invalid:7070")

    def test_the_default_is_the_clis(self):
        state_dir = connection.state_dir
        self.assertEqual(str(state_dir({"TESSERA_STATE_DIR": "/s"})), "/s")
        self.assertEqual(str(state_dir({"XDG_STATE_HOME": "/x", "HOME": "/h"})), "/x/tessera")
        self.assertEqual(
            str(state_dir({"XDG_STATE_HOME": "relative", "HOME": "/h"})),
            "/h/.local/state/tessera",
        )
        self.assertRaises(ValueError, state_dir, {})


class SpecTest(unittest.TestCase):
    def test_a_dict_is_read_as_a_job_file_is(self):
        spec = tessera.make_spec(JOB, "/base")
        self.assertEqual(spec.method.WhichOneof("kind"), "sft")
        self.assertEqual(spec.model.path, "/base/models/m")
        self.assertEqual([*spec.data.train], ["/base/a.jsonl"])
        self.assertEqual(spec.data.mixture[0].weight, 2)
        self.assertEqual(spec.training.learning_rate, 1.0)
        self.assertEqual(spec.resources.hang_timeout.ToMilliseconds(), 1500)
        self.assertFalse(spec.training.HasField("max_steps"))

    def test_every_mistake_is_told(self):
        job = {
            "nme": "x",
            "method": {"sft": {}, "dpo": {}},
            "model": {"path": 3, "dtype": None},
            "training": {"max_steps": "many", "packing": True},
            "resources": {"hang_timeout": "soon"},
        }
        with self.assertRaises(tessera.InvalidJobError) as caught:
            tessera.make_spec(job)
        fields = [violation.field for violation in caught.exception.violations]
        self.assertEqual(
            fields,
            [
                "nme",
                "method.dpo",
                "model.dtype",
                "training.max_steps",
                "training.packing",
                "resources.hang_timeout",
            ],
        )
        self.assertIn("did you mean name?", str(caught.exception))

    def test_yaml_is_that_of_a_job_file(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "job.yaml"
            file.write_text(
                "name: 12\nmethod: {sft: }\nmodel: {path: m}\n"
                "training: {save_strategy: no, learning_rate: 1e-3, max_steps: 7,"
                " resume_from_checkpoint: latest}\n"
            )
            spec = tessera.load_job(file)
            self.assertEqual(spec.model.path, f"{directory}/m")
        self.assertEqual(spec.name, "12")
        self.assertEqual(spec.training.save_strategy, "no")
        self.assertEqual(spec.training.learning_rate, 1e-3)
        self.assertEqual(spec.training.resume_from_checkpoint, "latest")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as built:
        sys.path.insert(0, str(build_package(pathlib.Path(built))))
        os.environ.pop("TESSERA_ADDRESS", None)
        import grpc
        import tessera
        from google.rpc import error_details_pb2, status_pb2
        from tessera import connection, requests
        from tessera.v1 import coordinator_pb2 as pb
        from tessera.v1.generate_pb2 import GenerateReply

        unittest.main()
