"""Stand for a program on the PATH: the fork server runs it with these files, and this process ends as it ends.

It imports next to nothing, because a shell starts one for each command of the documentation.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import struct
import sys

HEAD = struct.Struct("!I")
PID = struct.Struct("!i")
FORWARDED = tuple(
    getattr(_signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH", "CONT")
)
NO_SERVER = 125


class Connection:
    """A connection to the server about one process. Closing it before the process has ended kills the process."""

    def __init__(
        self,
        address: str,
        command: list[str],
        folder: str,
        environment: dict[bytes, bytes],
        files: tuple[int, int, int],
    ) -> None:
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.socket.connect(address)
        request = marshal.dumps((command, folder, environment))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", *files))]
        self.socket.sendmsg([HEAD.pack(len(request))], rights)
        self.socket.sendall(request)
        self.pid = self.receive()

    def receive(self) -> int:
        """First the pid, and when the process has ended its exit code."""
        answer = b""
        while len(answer) < PID.size:
            part = self.socket.recv(PID.size - len(answer))
            if not part:
                raise ConnectionError("the fork server is gone")
            answer += part
        return int(PID.unpack(answer)[0])

    def send_signal(self, number: int) -> None:
        """The server checks that the pid still belongs to the process."""
        self.socket.sendall(bytes([number]))


def run(address: str, program: str) -> None:
    waiting: list[int] = []
    forward = waiting.append
    for number in FORWARDED:
        if _signal.getsignal(number) is not _signal.SIG_IGN:  # As a shell does for background processes.
            _signal.signal(number, lambda number, _: forward(number))
    try:
        folder = os.getcwd()  # noqa: PTH109 - pathlib takes long to load
        connection = Connection(address, [program, *sys.argv[1:]], folder, dict(os.environb), (0, 1, 2))
        forward = connection.send_signal
        for number in waiting:
            forward(number)
        code = connection.receive()
    except OSError as error:
        os.write(2, f"{program}: {error}\n".encode())
        os._exit(NO_SERVER)
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
