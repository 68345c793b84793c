"""Adds the messages of tessera.v1, generated, to what is built; pyproject.toml has the rest."""

import importlib.metadata
import pathlib

from grpc_tools import _proto, protoc
from setuptools import setup
from setuptools.command.build_py import build_py

# In a checkout a link to the tree's protos; in a source distribution a copy.
PROTOS = pathlib.Path(__file__).parent / "proto"


class BuildWithMessages(build_py):
    def run(self):
        super().run()
        root = pathlib.Path(__file__).parent if self.editable_mode else pathlib.Path(self.build_lib)
        root.mkdir(parents=True, exist_ok=True)
        well_known = pathlib.Path(_proto.__file__ or next(iter(_proto.__path__)))
        includes = [PROTOS, well_known if well_known.is_dir() else well_known.parent]
        protos = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("tessera/v1/*.proto"))
        arguments = [f"-I{include}" for include in includes]
        arguments += [f"--python_out={root}", f"--pyi_out={root}", *protos]
        if protoc.main(["protoc", *arguments]) != 0:
            raise RuntimeError(f"protoc failed on {' '.join(protos)}")


# What generated code needs is what its generator says.
protobuf = next(
    requirement
    for requirement in importlib.metadata.requires("grpcio-tools")
    if requirement.startswith("protobuf")
)
setup(
    cmdclass={"build_py": BuildWithMessages},
    install_requires=["grpcio>=1.66", "googleapis-common-protos>=1.63", "pyyaml>=6", protobuf],
)
