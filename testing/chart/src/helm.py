"""Helm's own code, for Rust: reads one request as JSON, prints one answer as JSON.

    {"render": {"chart": FOLDER_OR_ARCHIVE, "values": [...], "name": NAME, "namespace": NAMESPACE,
                "existing": [...]}}
        a list of {"Ok": {template: text}} or {"Err": text}, one for each item of values; `lookup`
        finds the existing objects
    {"lint": {"chart": FOLDER_OR_ARCHIVE, "values": [...]}}
        a list of lists of findings
"""

import json
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import helm_python as helm


@contextmanager
def cluster(existing):
    """An API server with these objects, for Helm's `lookup`, which only reads."""
    answers = {}
    for object in existing:
        version, plural = object["apiVersion"], object["kind"].lower() + "s"
        kind = {"name": plural, "namespaced": True, "kind": object["kind"], "verbs": ["get"]}
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds = {"kind": "APIResourceList", "groupVersion": version, "resources": []}
        answers.setdefault(root, kinds)["resources"].append(kind)
        name, namespace = object["metadata"]["name"], object["metadata"]["namespace"]
        answers[f"{root}/namespaces/{namespace}/{plural}/{name}"] = object

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            found = answers.get(self.path.split("?")[0])
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found or missing).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with helm.Config(kubeconfig_path="/dev/null", kube_apiserver=address) as config:
            yield config
        server.shutdown()


def render(chart, values, name, namespace, existing):
    answers = []
    with helm.Chart.load(chart) as loaded, cluster(existing) as config:
        # Without objects as `helm template` does: no cluster, and `lookup` finds nothing.
        render = partial(config.render, loaded) if existing else loaded.render
        for one in values:
            try:
                # `helm template` validates values before it renders; `render` alone does not.
                loaded.validate_schema(loaded.merge_values(one))
                answers.append({"Ok": render(one, name=name, namespace=namespace)})
            except helm.HelmError as error:
                answers.append({"Err": str(error)})
    return answers


def lint(chart, values):
    findings = []
    for one in values:
        report = helm.lint(chart, one, strict=True, with_subcharts=True)
        # Severity 1 is a hint, such as that there is no icon.
        messages = [m["error"] for m in report["messages"] if m["severity"] > 1]
        findings.append(sorted(set(messages + report["errors"])))
    return findings


(task, arguments), = json.load(sys.stdin).items()
answer = {"render": render, "lint": lint}[task](**arguments)
json.dump(answer, sys.stdout)
