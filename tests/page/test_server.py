"""Test that the server answers this machine's browser and refuses requests from foreign pages."""

import http.client
import json
import re
import socket
import struct
import subprocess
import sys
import threading
from itertools import product

import pytest

from kernrec.cli.app import run
from kernrec.errors import UsageError
from kernrec.page.answers import Answers
from kernrec.page.server import PageServer
from kernrec.recommender import Recommender
from tests.helpers.command import environment
from tests.helpers.needs import needs

pytestmark = needs("bokeh")

CHOSEN = {"gpus": ["rtx4090"], "problem": {}}


@pytest.fixture(scope="module")
def server():
    served = PageServer(Answers(Recommender(databases=[])), 0, CHOSEN)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def get(
    server: PageServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_server_sends_the_page_and_its_files(server):
    page, body = get(server, "/")
    assert page.status == 200
    assert "script-src 'self';" in page.headers["Content-Security-Policy"]
    for name in (b"page.css", b"page.js", b"bokeh.min.js"):
        assert name in body
        assert get(server, "/" + name.decode())[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "127.0.0.1:1"])
def test_request_with_a_foreign_host_name_is_forbidden(server, host):
    answer, body = get(server, "/api/front?op=matmul&shape=m=64,n=64,k=64&gpu=l4", host=host)
    assert answer.status == 403
    assert b"points" not in body


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/page.html", "/api/", "/api/../page.js", "/api/eval", "/static/page.js", "//etc/passwd"],
)
def test_server_refuses_other_files(server, path):
    assert get(server, path)[0].status == 404


def test_malformed_address_gets_404(server):
    for path in ("http://[::1", "//["):
        assert get(server, path, host=f"127.0.0.1:{server.server_address[1]}")[0].status == 404


@pytest.mark.parametrize(
    "query", ["gpu=rtx4090&op=nothing", "gpu", "&&&", "a=1" + "&a=1" * 50, "gpu=%00&op=matmul", "op=__import__('os')"]
)
def test_wrong_request_gets_an_error_in_one_line(server, query):
    answer, body = get(server, f"/api/front?{query.replace(' ', '%20')}")
    assert answer.status == 400
    assert "\n" not in json.loads(body)["error"]


def test_server_listens_only_on_loopback(server):
    assert server.server_address[0] == "127.0.0.1"


def test_port_in_use_is_reported_in_one_line(server, capsys, refuses):
    port = server.server_address[1]
    with pytest.raises(UsageError, match=f"port {port} is in use; give another --port"):
        PageServer(server.answers, port, CHOSEN)
    refuses(lambda: PageServer(server.answers, 70000, CHOSEN))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["explore", "--port", str(taken.getsockname()[1])]) == 2
    assert "is in use" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="an interrupt is sent otherwise there")
def test_disconnects_are_ignored_and_an_interrupt_stops_the_server_cleanly():
    import signal

    command = [sys.executable, "-m", "kernrec", "explore", "--port", "0", "--gpu", "t4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())[1])  # type: ignore[index]
    for (path, end), _ in product(
        (("bokeh.min.js", "\r\n"), ("api/front?gpu=t4&op=matmul", "\r\n"), ("", "")), range(4)
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as leaving:
            leaving.sendall(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{end}".encode())
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("length", [
    b"Content-Length: 57", b"Content-Length:\r\nContent-Length: 57", b"Content-Length : 57",
    b"X: a\r\n Content-Length: 57", b"Transfer-Encoding:\r\nTransfer-Encoding: chunked", b"Connection: keep-alive",
])  # fmt: skip
def test_text_after_a_request_is_not_read_as_a_second_request(server, length):
    host = b" HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.server_address[1]
    with socket.create_connection(server.server_address, timeout=60) as connection:
        connection.sendall(b"GET /page.css" + host + length + b"\r\n\r\n" + b"GET /page.js" + host + b"\r\n")
        received = b""
        while piece := connection.recv(2**16):
            received += piece
    assert received.count(b"HTTP/1.0 ") == 1


def test_disconnected_browser_is_ignored(server, capfd):
    for error in (BrokenPipeError(), ConnectionResetError(), TimeoutError()):
        try:
            raise error
        except OSError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""
    try:
        raise ValueError("a fault")
    except ValueError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert "ValueError: a fault" in capfd.readouterr().err


def test_200_simultaneous_clients_are_served(server):
    """All clients are connected before the first sends its request."""
    clients = [socket.create_connection(server.server_address, timeout=60) for _ in range(200)]
    request = f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{server.server_address[1]}\r\n\r\n".encode()
    for client in clients:
        client.sendall(request)
    answers = []
    for client in clients:
        with client, client.makefile("rb") as file:
            answers.append(file.readline())
    assert set(answers) == {b"HTTP/1.0 200 OK\r\n"}
    assert len(answers) == 200
