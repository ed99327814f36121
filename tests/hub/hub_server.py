"""A stand-in of the Hugging Face Hub on loopback, in the standard library: what huggingface_hub needs to push and load.

Tokens: "hf_writer" may write to the user `tester`, "hf_reader" may only read. Files that end in .safetensors go through the LFS
path. Data sets can be read; their ids in `HubServer.repos` begin with "datasets:". `HubServer.failures` maps an endpoint's name to a status, to make it fail.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import warm

TOKENS = {"hf_writer": "write", "hf_reader": "read"}
OWNER = "tester"


class HubServer:
    """Runs in a thread; `with HubServer() as hub:` gives `hub.url` and the repositories in `hub.repos`."""

    def __init__(self):
        self.repos: dict[
            str, dict
        ] = {}  # id -> {"private", "branches": name -> commit, "commits": oid -> {path: file}}
        self.lfs: dict[str, bytes] = {}
        self.failures: dict[str, int] = {}
        self.log: list[str] = []
        self.lock = threading.RLock()

    def __enter__(self) -> HubServer:
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=(0.01,), daemon=True
        )  # it looks for its end so often
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, dict]:
        """Files of a branch or commit: path to {"data", "lfs": bool}."""
        repo = self.repos[repo_id]
        return repo["commits"][repo["branches"].get(revision, revision)]


def client(hub_url, tmp_path, *command, token="hf_writer", fresh=False):
    """Python with some words, in a process of its own in the folder `tmp_path` whose Hub is the one at `hub_url`; `fresh`: `-c` and code, with
    nothing of lmctr imported yet."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub_url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HOME": str(tmp_path / "hf_home"),
        "HF_TOKEN": token,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    environment.pop("TRANSFORMERS_OFFLINE", None)
    if fresh:
        return warm.fresh(*command[1:], environment=environment, folder=tmp_path)
    return warm.run(*command, environment=environment, folder=tmp_path, check=False)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer's second part else waits 40 ms for the first one's receipt

    ROUTES = (
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", r"/api/models/([^/]+/[^/]+)/branch/([^/]+)", "branch"),
        ("POST", r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", "preupload"),
        ("POST", r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", "commit"),
        ("GET", r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(/.*)?", "tree"),
        ("GET", r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", "info"),
        ("POST", r"/api/models/([^/]+/[^/]+)/paths-info/([^/]+)", "paths"),
        ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/lfs/([0-9a-f]{64})", "upload"),
        ("POST", r"/lfs/([0-9a-f]{64})/verify", "verify"),
        ("HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
        ("GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    )
    NEEDS_WRITE = ("create", "branch", "preupload", "commit", "batch")

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.dispatch()

    do_GET = do_POST = do_PUT = do_HEAD

    def dispatch(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = re.sub("^(/api)?/datasets/", lambda start: f"{'/api/models' * bool(start[1])}/datasets:", self.path)
        path = urlsplit(path).path
        found = [
            (name, match)
            for method, pattern, name in self.ROUTES
            if method == self.command and (match := re.fullmatch(pattern, path))
        ]
        if not found:
            return self.answer(404, {"error": f"no route {self.command} {path}"})
        name, match = found[0]
        with self.hub.lock:
            self.hub.log.append(name)
            if name in self.hub.failures:
                return self.answer(self.hub.failures[name], {"error": f"{name} fails on purpose"})
            if name in self.NEEDS_WRITE and self.right() != "write":
                status = 401 if self.right() is None else 403
                return self.answer(
                    status, {"error": "Invalid credentials" if status == 401 else "Token may not write"}
                )
            return getattr(self, name)(*(unquote(part) if part else part for part in match.groups()))

    def right(self):
        return TOKENS.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))

    def answer(self, status, value=None, headers=None, data=None):
        data = json.dumps(value if value is not None else {}).encode() if data is None else data
        self.send_response(status)
        for key, text in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def repo(self, repo_id):
        """The repository, or None after a 404: missing and private ones look alike to a stranger."""
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo["private"] and self.right() is None):
            status = 401 if self.right() is None else 404
            self.answer(status, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def commit_of(self, repo, revision):
        oid = repo["branches"].get(revision, revision)
        if oid not in repo["commits"]:
            self.answer(404, {"error": f"Invalid rev id: {revision}"}, {"X-Error-Code": "RevisionNotFound"})
            return None
        return oid

    # writing

    def create(self):
        request = json.loads(self.body)
        repo_id = f"{request.get('organization') or OWNER}/{request['name']}"
        if not repo_id.startswith(f"{OWNER}/"):
            return self.answer(403, {"error": f"You may not create {repo_id}"})
        if repo_id in self.hub.repos:
            return self.answer(
                409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{repo_id}"}
            )
        private = request.get("private") or request.get("visibility") == "private"
        first = hashlib.sha1(repo_id.encode()).hexdigest()
        files = {".gitattributes": {"data": b"*.safetensors filter=lfs\n", "lfs": False}}
        self.hub.repos[repo_id] = {"private": bool(private), "branches": {"main": first}, "commits": {first: files}}
        return self.answer(200, {"url": f"{self.hub.url}/{repo_id}", "name": repo_id})

    def validate(self):
        content = json.loads(self.body)["content"]
        broken = not re.match(r"---\n.*?\n---\n", content, re.DOTALL)
        errors = [{"message": "no metadata block"}] if broken else []
        return self.answer(400 if broken else 200, {"errors": errors, "warnings": []})

    def branch(self, repo_id, name):
        repo = self.repo(repo_id)
        if repo is None:
            return None
        if name in repo["branches"]:
            return self.answer(409, {"error": "Reference already exists"})
        repo["branches"][name] = repo["branches"]["main"]
        return self.answer(201)

    def preupload(self, repo_id, revision):
        repo = self.repo(repo_id)
        if repo is None or (commit := self.commit_of(repo, revision)) is None:
            return None
        answer = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                **self.hashes(repo["commits"][commit].get(file["path"])),
            }
            for file in json.loads(self.body)["files"]
        ]
        return self.answer(200, {"files": answer})

    def hashes(self, file):
        """The hash of a file that is there, by which a client leaves out what has not changed."""
        if file is None:
            return {}
        whole = file["data"] if file["lfs"] else b"blob %d\0" % len(file["data"]) + file["data"]
        return {"oid": (hashlib.sha256 if file["lfs"] else hashlib.sha1)(whole).hexdigest()}

    def batch(self, repo_id):
        objects = []
        for entry in json.loads(self.body)["objects"]:
            actions = {
                "upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"},
                "verify": {"href": f"{self.hub.url}/lfs/{entry['oid']}/verify"},
            }
            known = entry["oid"] in self.hub.lfs
            objects.append({**entry, "authenticated": True, **({} if known else {"actions": actions})})
        return self.answer(200, {"transfer": "basic", "objects": objects})

    def upload(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.answer(400, {"error": "content does not have this hash"})
        self.hub.lfs[oid] = self.body
        return self.answer(200)

    def verify(self, oid):
        size = json.loads(self.body)["size"]
        good = len(self.hub.lfs.get(oid, b"")) == size
        return self.answer(200 if good else 400, {})

    def commit(self, repo_id, revision):
        repo = self.repo(repo_id)
        if repo is None or (parent := self.commit_of(repo, revision)) is None:
            return None
        files = dict(repo["commits"][parent])
        for line in self.body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                summary = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = {"data": base64.b64decode(value["content"]), "lfs": False}
            elif entry["key"] == "lfsFile":
                files[value["path"]] = {"data": self.hub.lfs[value["oid"]], "lfs": True}
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        oid = hashlib.sha1(f"{parent} {sorted(files)} {self.body!r}".encode()).hexdigest()
        repo["commits"][oid] = files
        repo["branches"][revision] = oid
        repo["message"] = summary
        return self.answer(200, {"commitUrl": f"{self.hub.url}/{repo_id}/commit/{oid}", "commitOid": oid})

    # reading

    def info(self, repo_id, revision):
        repo = self.repo(repo_id)
        if repo is None or (oid := self.commit_of(repo, revision or "main")) is None:
            return None
        siblings = [{"rfilename": path} for path in sorted(repo["commits"][oid])]
        facts = {"_id": "0", "id": repo_id, "modelId": repo_id, "sha": oid, "private": repo["private"]}
        return self.answer(200, {**facts, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def tree(self, repo_id, revision, folder):
        return self.entries(repo_id, revision, lambda path: f"/{path}".startswith(f"{folder or ''}/"), folder or "")

    def paths(self, repo_id, revision):
        asked = json.loads(self.body)["paths"]
        return self.entries(repo_id, revision, lambda path: path in asked)

    def entries(self, repo_id, revision, wanted, folder=None):
        """The files that are wanted; of a folder that is listed alone, the folders in it too."""
        repo = self.repo(repo_id)
        if repo is None or (oid := self.commit_of(repo, revision)) is None:
            return None
        entries = []
        for path, file in sorted(repo["commits"][oid].items()):
            if not wanted(path):
                continue
            inner = path[len(folder) :].lstrip("/").partition("/") if folder is not None else ("", "", "")
            if inner[1] and "recursive=false" in self.path:
                found = {"type": "directory", "path": f"{folder}/{inner[0]}".lstrip("/"), "size": 0, "oid": "0" * 40}
                entries += [found] if found not in entries else []
                continue
            entry = {"type": "file", "path": path, "size": len(file["data"])}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(file["data"]) + file["data"]).hexdigest()
            if file["lfs"]:
                sha = hashlib.sha256(file["data"]).hexdigest()
                entry["lfs"] = {"oid": sha, "size": len(file["data"]), "pointerSize": 134}
            entries.append(entry)
        return self.answer(200, entries)

    def resolve(self, repo_id, revision, path):
        repo = self.repo(repo_id)
        if repo is None or (oid := self.commit_of(repo, revision)) is None:
            return None
        file = repo["commits"][oid].get(path)
        if file is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid}
            return self.answer(404, {"error": "Entry not found"}, headers)
        data = file["data"]
        etag = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        headers = {"X-Repo-Commit": oid, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if file["lfs"]:
            headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
        return self.answer(200, headers=headers, data=data)
