"""Those who attack a federation, for the tests: they hold `ca.crt` and reach a port, nothing else."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import tomli_w
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message

from intarsia.flower.superexec import HOST, QUIET
from tests.flower.conftest import Trial, wait_until

EVIL = """
import os, pathlib, sys
pathlib.Path({marks!r}).mkdir(exist_ok=True)
(pathlib.Path({marks!r}) / f"{{__name__}}-{{os.getpid()}}").write_text(" ".join(sys.argv))
"""
APPS = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    list(grid.send_and_receive([Message(RecordDict(), n, "query") for n in grid.get_node_ids()], timeout=20))

@client.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""


class Stranger:
    """Has a folder and a Flower home of its own; knows the address and the CA's certificate."""

    def __init__(self, folder: Path, trial: Trial, port: int = 0) -> None:
        self.folder, self.trial, self.port = folder, trial, port or trial.port
        self.marks = folder / "marks"
        shutil.copy(trial.folder / "certs" / "ca.crt", folder)
        link = {"address": f"{HOST}:{self.port}", "root-certificates": str(folder / "ca.crt")}
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(tomli_w.dumps({"superlink": {"target": link}}))
        path = {"PATH": trial.environment["PATH"]}
        self.environment = {**os.environ, **QUIET, **path, "FLWR_HOME": str(folder / "flwr")}

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Flower."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )

    def write_app(self) -> Path:
        """Write an app of two components that leave a mark wherever they are loaded."""
        app = self.folder / "app"
        (app / "own").mkdir(parents=True)
        (app / "own" / "__init__.py").write_text(self.evil + APPS)
        components = {"serverapp": "own:server", "clientapp": "own:client"}
        project = {"name": "own", "version": "1.0.0", "description": "x", "license": "Apache-2.0"}
        flwr = {"app": {"publisher": "x", "components": components}}
        about = {"project": {**project, "dependencies": ["flwr"]}, "tool": {"flwr": flwr}}
        (app / "pyproject.toml").write_text(tomli_w.dumps(about))
        return app

    @property
    def evil(self) -> str:
        """Code that leaves a mark."""
        return EVIL.format(marks=str(self.marks))

    def superexec(self, *where: str) -> subprocess.Popen[str]:
        """Ask a runtime API for its tasks, as fast as Flower's own SuperExec can."""
        environment = {**self.environment, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01"}
        return subprocess.Popen(
            ["flower-superexec", "--runtime-api-address", *where],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def ask(self, method: str, path: str, plain: int = 0) -> int:
        """Send a request as it is written (to a port without TLS, if one is named); return the answer's status."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        secure = HTTPSConnection(HOST, self.port, context=context, timeout=30)
        connection = HTTPConnection(HOST, plain, timeout=30) if plain else secure
        try:
            connection.putrequest(method, path)
            for name, value in (("Content-Type", "application/protobuf"), ("Content-Length", "0")):
                connection.putheader(name, value)
            connection.endheaders()
            return connection.getresponse().status
        finally:
            connection.close()


def listening(pid: int) -> list[int]:
    """Return the ports on which a process listens, as everybody on the machine can find out."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(entry))
        except OSError:
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in sockets]


NGINX = """
user {user};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/intarsia.conf;
}}
"""


@contextmanager
def nginx(folder: Path, configuration: str, port: int):
    """Run nginx from Debian with a server of ours."""
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "intarsia.conf").write_text(configuration)
    (folder / "nginx.conf").write_text(NGINX.format(user=user, folder=folder))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.log")]
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: process.poll() is not None or port in listening(process.pid), 20)
        assert process.poll() is None, (folder / "nginx.log").read_text()
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def written(content: RecordDict, run: int = 1, source: int = 1, target: int = 2) -> Message:
    """Return a message with any metadata, as nobody but Flower's own code would write it."""
    about = Metadata(run, "", source, target, "", "", time.time(), 60.0, "query")
    made = make_message(about, content)
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


def forge(trial: Trial, site: str, run: int, source: int, target: int) -> int:
    """Push a message through the node of a site that comes from another, as it says; return the answer's status."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PushMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from httpx import HTTPStatusError

    certs = trial.folder / "certs"
    private = load_ssh_private_key((certs / "keys" / site).read_bytes(), None)
    identity = NodeAuthHttpInterceptor(private, private.public_key())
    ca = (certs / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address(
        f"{HOST}:{trial.port}", False, ca, interceptors=[identity]
    ) as link:
        key = public_key_to_bytes(private.public_key())
        me = link.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30)).node_id
        message = written(RecordDict(), run, source, target)
        request = PushMessagesRequest(
            node=Node(node_id=me),
            messages_list=[message_to_proto(message)],
            message_object_trees=[get_object_tree(message)],
        )
        try:
            link.PushMessages(request)
        except HTTPStatusError as error:
            return int(error.response.status_code)
        finally:
            link.DeactivateNode(DeactivateNodeRequest(node_id=me))
        return 200
