#!/usr/bin/env python3
"""A load balancer that asks for machines by its own load: requests of the last second times what one of them needs.

Each second it says what it needs (PUT /v1/capacity/requirements), and it learns at once when the list of members
changes (a blocking query). A path goes to one member by a jump hash, so that a list that grows moves few paths.
"""
import argparse, http.client, http.server, json, threading, time, urllib.error, urllib.request, uuid, zlib

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--servers", default="http://127.0.0.1:4646,http://127.0.0.1:4656,http://127.0.0.1:4666")
options.add_argument("--group", default="web")
options.add_argument("--port", type=int, default=8000)
options.add_argument("--mb-per-request", type=int, default=200, help="what a request in a second needs")
options = options.parse_args()
servers, members, lock, requests = options.servers.split(","), [], threading.Lock(), 0


def ask(server, method, path, body=None, timeout=5):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer), answer.headers


def advertise():
    """Says each second what is needed: all of it, so that what was said before is replaced."""
    global requests
    source, epoch, sequence, server = f"balancer-{uuid.uuid4().hex[:8]}", time.time_ns() // 1_000_000, 0, 0
    while True:
        time.sleep(1)
        with lock:
            count, requests = requests, 0
        sequence += 1
        needed = [{"Group": options.group, "Amount": count * options.mb_per_request}]
        body = {"Source": source, "Epoch": epoch, "Seq": sequence, "TTLms": 5_000, "Groups": needed}
        try:
            ask(servers[server % len(servers)], "PUT", "/v1/capacity/requirements", body)
        except urllib.error.HTTPError as error:
            print(f"refused: {error.read().decode()}", flush=True)
            server += error.code >= 500
        except (OSError, http.client.HTTPException, ValueError):
            server += 1  # the next one


def follow():
    """Keeps the list of members; an error keeps the last one."""
    global members
    index, server = 0, 0
    while True:
        try:
            path = f"/v1/capacity/{options.group}/members?index={index}&wait=30s"
            rows, headers = ask(servers[server % len(servers)], "GET", path, timeout=40)
            index, found = int(headers["X-Nomad-Index"]), [(row["Address"], row["Port"]) for row in rows]
            if found != members:
                print(f"members: {found}", flush=True)
            members = found
        except (OSError, http.client.HTTPException, ValueError):
            index, server = 0, server + 1
            time.sleep(1)


def jump(key, buckets):
    """Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm"."""
    bucket, following = -1, 0
    while following < buckets:
        bucket, key = following, (key * 2862933555777941757 + 1) % (1 << 64)
        following = int((bucket + 1) * (1 << 31) / ((key >> 33) + 1))
    return bucket


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global requests
        with lock:
            requests += 1
        current = members
        first = jump(zlib.crc32(self.path.encode()), len(current)) if current else 0
        status, body = 503, b"no member answers\n"
        for address, port in current[first:] + current[:first]:
            try:
                with urllib.request.urlopen(f"http://{address}:{port}{self.path}", timeout=10) as answer:
                    status, body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, body = error.code, error.read()
            except OSError:
                continue  # the next member
            break
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    log_message = lambda *_: None


for work in (advertise, follow):
    threading.Thread(target=work, daemon=True).start()
balancer = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
print(f"balancing on http://127.0.0.1:{balancer.server_port}", flush=True)
balancer.serve_forever()
