"""Files: permissions, locks through real processes, stored formats, objects from a user's module."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fpa
from fpa import InputError
from fpa.errors import DamagedError
from fpa.files import (
    LOCK,
    WEIGHTS,
    file_texts,
    folder_lock,
    open_table,
    read_arrays,
    read_json,
    tensors_and_texts,
    tensors_fingerprint,
    write_json,
    write_table,
    write_tensors,
    write_text,
)
from fpa.plugins import load_object

HOLD = """
import sys
from pathlib import Path
from fpa.files import folder_lock

with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder until it is told to stop."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_have_the_permissions_of_any_new_file(tmp_path, umask):
    code = "import sys; from pathlib import Path; from fpa.files import write_text; "
    code += "write_text(Path(sys.argv[1]), 'text'); Path(sys.argv[2]).touch()"
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ours"), str(tmp_path / "usual")], check=True, umask=umask
    )
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_writing_leaves_the_umask_of_the_process_alone(tmp_path, monkeypatch):
    """It belongs to all threads: a file that another one creates meanwhile would be open to everyone."""

    def changed(mask):
        raise AssertionError("the umask was changed")

    monkeypatch.setattr(os, "umask", changed)
    write_text(tmp_path / "file", "text")


class TestLock:
    def test_a_second_process_is_told_who_holds_the_folder_and_touches_nothing(self, tmp_path, holder):
        before = (tmp_path / LOCK).read_bytes()
        expected = rf"{tmp_path} is in use by process {holder.pid} on \S+ \(-c {tmp_path}, since \d\d:\d\d\)"
        with pytest.raises(InputError, match=expected), folder_lock(tmp_path):
            pass
        assert (tmp_path / LOCK).read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]

    def test_it_is_gone_with_its_file_when_the_run_ends(self, tmp_path, holder):
        holder.communicate("\n")
        assert not list(tmp_path.iterdir())
        with folder_lock(tmp_path):
            pass

    def test_it_is_gone_when_the_process_is_killed(self, tmp_path, holder):
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert (tmp_path / LOCK).exists()  # what is left behind blocks nobody
        with folder_lock(tmp_path):
            pass
        assert not (tmp_path / LOCK).exists()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_worker_that_lives_on_does_not_keep_it(self, tmp_path):
        code = HOLD.replace(
            '    print("held"',
            "    worker = os.fork()\n    if not worker:\n        time.sleep(60)\n    print(worker",
        )
        code = "import os, time\n" + code
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        worker = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            with folder_lock(tmp_path):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)

    @pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[]"])
    def test_a_stale_or_damaged_file_blocks_nobody(self, tmp_path, content):
        (tmp_path / LOCK).write_text(content)
        with folder_lock(tmp_path):
            pass
        assert not (tmp_path / LOCK).exists()

    def test_it_nests_in_one_thread_and_refuses_another(self, tmp_path):
        refused = []

        def another():
            try:
                with folder_lock(tmp_path):
                    pass
            except InputError as error:
                refused.append(str(error))

        with folder_lock(tmp_path):
            with folder_lock(Path(os.path.relpath(tmp_path))):  # the same folder by another name
                pass
            assert self.refused_elsewhere(tmp_path)  # the inner one has not given it back
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
            assert "another run in this process" in refused[0]
            assert self.refused_elsewhere(tmp_path)
        assert not self.refused_elsewhere(tmp_path)

    @pytest.mark.parametrize("link", [os.symlink, os.link])
    def test_a_link_in_its_place_is_refused_and_not_followed(self, tmp_path, link):
        mine = tmp_path / "mine.txt"
        mine.write_text("a year of work")
        (tmp_path / "study").mkdir()
        link(mine, tmp_path / "study" / LOCK)
        with (
            pytest.raises(InputError, match=rf"study cannot be locked: .*{LOCK} is a link"),
            folder_lock(tmp_path / "study"),
        ):
            pass
        assert mine.read_text() == "a year of work"

    def test_a_link_to_nothing_in_its_place_makes_no_file_there(self, tmp_path):
        (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InputError, match=f"{LOCK} is a link"), folder_lock(tmp_path):
            pass
        assert not (tmp_path / "elsewhere").exists()

    def test_a_folder_or_a_pipe_in_its_place_is_named(self, tmp_path):
        for make, message in ((os.mkdir, "is a folder; remove it first"), (os.mkfifo, "no plain file")):
            folder = tmp_path / make.__name__
            folder.mkdir()
            make(folder / LOCK)
            with pytest.raises(InputError, match=message), folder_lock(folder):
                pass

    @pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
    def test_where_the_file_system_has_no_locks_the_run_goes_on(self, tmp_path, code, monkeypatch):
        def without(descriptor, operation):
            raise OSError(getattr(errno, code), "no locks here")

        monkeypatch.setattr("fcntl.flock", without)
        monkeypatch.setattr("fcntl.lockf", without)
        with folder_lock(tmp_path), folder_lock(tmp_path):
            write_text(tmp_path / "file", "text")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_worker_that_ends_leaves_it_to_the_run(self, tmp_path):
        def leave():
            with folder_lock(tmp_path):
                worker = os.fork()
                if worker:
                    assert os.waitpid(worker, 0)[1] == 0
                    assert self.refused_elsewhere(tmp_path)
            if not worker:
                os._exit(0)

        leave()
        assert not list(tmp_path.iterdir())

    @staticmethod
    def refused_elsewhere(folder):
        command = [sys.executable, "-c", HOLD, str(folder)]
        result = subprocess.run(command, input="\n", capture_output=True, text=True, check=False)
        return "is in use by" in result.stderr


class TestStored:
    """What people have on their disks: the checksums, written out here, are those of every version."""

    def test_json(self, tmp_path):
        path = write_json(tmp_path / "a.json", {"b": 1, "a": [2.5, None]})
        guard = hashlib.sha256(b'{"a": [2.5, null], "b": 1}').hexdigest()[:16]
        assert json.loads(path.read_text()) == {"b": 1, "a": [2.5, None], "checksum": guard}
        assert read_json(path) == {"b": 1, "a": [2.5, None]}
        path.write_text(path.read_text().replace("2.5", "2.4"))
        with pytest.raises(
            DamagedError, match=r"a.json is damaged \(its content does not match its checksum"
        ):
            read_json(path)

    def test_tensors(self, tmp_path):
        path = tmp_path / "a.safetensors"
        write_tensors(path, {"w": torch.ones(2)}, {"b": "y", "a": "x"})
        values = b"w torch.float32 [2]" + np.ones(2, np.float32).tobytes()
        guard = hashlib.blake2b(b"xy" + values, digest_size=16).hexdigest()
        assert file_texts(path) == {"a": "x", "b": "y", "fpa-checksum": guard}
        tensors, texts = tensors_and_texts(path)
        assert (tensors["w"].tolist(), texts) == ([1.0, 1.0], {"a": "x", "b": "y"})
        assert tensors_fingerprint(tensors) == hashlib.sha256(values).hexdigest()[:16]

    def test_a_table(self, tmp_path):
        path = tmp_path / "a.parquet"
        write_table(path, pa.table({"x": [1, 2]}), {"seed": 0}, "mine", [])
        guard = hashlib.blake2b(b'mine {"seed": 0}', digest_size=16).hexdigest().encode()
        assert pq.read_schema(path).metadata == {
            b"notes": b'{"seed": 0}',
            b"key": b"mine",
            b"checksum": guard,
        }
        stored = open_table(path)
        assert (stored.notes, stored.key, stored.read()["x"].to_pylist()) == ({"seed": 0}, "mine", [1, 2])
        pq.write_table(pa.table({"x": [1, 2]}), path)
        with pytest.raises(DamagedError, match=r"it is no table of fpa: it has no 'notes'"):
            open_table(path)


class TestLoadObject:
    def test_a_module_in_the_current_folder(self, tmp_path, monkeypatch):
        (tmp_path / "my_objects.py").write_text("class Inner:\n    value = 3\n")
        monkeypatch.chdir(tmp_path)
        before = list(sys.path)
        assert load_object("my_objects:Inner.value", "score") == 3
        assert sys.path == before

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("nowhere:thing", "nowhere:thing cannot be imported .*: No module named 'nowhere'"),
            ("math:tau2", "math:tau2 cannot be imported .*: module 'math' has no attribute 'tau2'"),
            ("math", "a score of your own must be named module:name, got 'math'"),
            (":pi", "must be named module:name, got ':pi'"),
        ],
    )
    def test_what_cannot_be_imported(self, spec, message):
        with pytest.raises(InputError, match=message):
            load_object(spec, "score")


def test_a_small_archive_that_expands_to_a_large_one_is_not_opened(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("images.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 20
    for read in (read_arrays, lambda path: fpa.get_estimators(f"maps:{path}")):
        with pytest.raises(InputError, match=r"bomb.npz would expand to 0.3 GiB: it is not opened"):
            read(tmp_path / "bomb.npz")


class TestChecksumByAnotherName:
    """Files of the first versions carry none; one whose name is damaged must not pass for such a file."""

    def test_of_json_it_is_noticed(self, tmp_path):
        path = write_json(tmp_path / "a.json", {"seed": 0, "model": "0123456789abcdef"})
        text = path.read_text()
        path.write_text(text.replace('"checksum"', '"checksuM"').replace('"seed": 0', '"seed": 1'))
        with pytest.raises(DamagedError, match="its last entry is a checksum, but is not called checksum"):
            read_json(path)

    def test_of_tensors_it_is_noticed(self, tmp_path):
        source = fpa.models.saved.PRETRAINED / "shapes-fpa.safetensors"
        tensors, texts = tensors_and_texts(source)
        texts[WEIGHTS] = tensors_fingerprint(tensors)
        write_tensors(tmp_path / "m.safetensors", tensors, texts)
        content = (tmp_path / "m.safetensors").read_bytes()
        (tmp_path / "m.safetensors").write_bytes(content.replace(b"fpa-checksum", b"fpa-checksuM", 1))
        with pytest.raises(InputError, match=r"m.safetensors is damaged: it has lost its checksum"):
            fpa.load_model(tmp_path / "m.safetensors")

    def test_files_of_the_first_versions_are_read(self, tmp_path):
        (tmp_path / "a.json").write_text('{"plan": {}, "model": "0123456789abcdef"}')
        assert read_json(tmp_path / "a.json") == {"plan": {}, "model": "0123456789abcdef"}


class TestOddNames:
    """Folders that people have, and that a library takes for something else."""

    @pytest.mark.parametrize("name", ["run:1", "a:b/c", "s3://x", "a%20b", "ni\u00f1o", "a\udce9b", "50 %"])
    def test_a_table_is_written_and_read(self, tmp_path, monkeypatch, name):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        path = Path(name) / "t.parquet"
        write_table(path, pa.table({"a": [1, 2]}), {"b": 3}, "key", [])
        assert open_table(path).read().column("a").to_pylist() == [1, 2]

    def test_what_is_no_text_is_written_as_its_bytes(self, tmp_path):
        write_text(tmp_path / "t.txt", "a\udce9b")
        assert (tmp_path / "t.txt").read_text() == r"a\udce9b"

    @pytest.mark.parametrize("name", ["a\0b", "a" * 300, "/".join(["a" * 200] * 30)])
    def test_one_that_cannot_be_is_refused_in_a_line(self, tmp_path, name):
        with (
            pytest.raises(InputError, match="cannot write to the folder") as error,
            folder_lock(tmp_path / name),
        ):
            pass
        assert len(str(error.value)) < 500


def test_a_folder_that_is_gone_meanwhile_is_named(tmp_path):
    with pytest.raises(InputError, match=r"the folder .*study is gone: it was removed or renamed"):
        write_text(tmp_path / "study" / "table.csv", "text")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match=r"aaa cannot be written: File name too long"):
        write_text(tmp_path / ("a" * 300), "text")


UNTIL_ENDED = """
import os, signal, sys, tempfile, time
from fpa.files import temporary_folder

tempfile.tempdir = sys.argv[1]
with temporary_folder() as folder:
    (folder / "block").touch()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_asked_to_end_leaves_no_temporary_folder(tmp_path, number):
    command = [sys.executable, "-c", UNTIL_ENDED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(30) == -number  # whoever waits for it learns why it ended
    assert list(tmp_path.iterdir()) == []
