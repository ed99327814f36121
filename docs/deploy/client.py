"""A client of `lmctr serve`: standard library only; a busy server is asked again when it says."""

import json
import time
from http.client import HTTPConnection


class Scores:
    def __init__(self, host: str = "localhost", port: int = 8000):
        self.connection = HTTPConnection(host, port, timeout=60)

    def post(self, route: str, tries: int = 5, **body) -> dict:
        for _ in range(tries):
            self.connection.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            answer = json.loads(response.read())
            self.connection.close()  # an idle one may be cut, and then it is not known what became of a request
            if response.status not in (429, 503):
                break
            time.sleep(float(response.headers.get("Retry-After", 1)))
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer['error']['message']}")
        return answer

    def score(self, **body) -> list[float]:
        return self.post("/v1/score", **body)["probabilities"]
