"""Helm's own code, for Rust: reads one request as JSON, prints one answer as JSON.

    {"render": {"chart": FOLDER, "values": [...], "name": NAME, "namespace": NAMESPACE}}
        a list of {"Ok": {template: text}} or {"Err": text}, one for each item of values
    {"lint": {"chart": FOLDER, "values": [...]}}
        a list of lists of findings
    {"package": {"chart": FOLDER, "into": FOLDER, "time": SECONDS}}
        the archive's path
"""

import gzip
import io
import json
import os
import sys
import tarfile

import helm_python as helm


def render(chart, values, name, namespace):
    answers = []
    with helm.Chart.load(chart) as loaded:
        for one in values:
            try:
                # `helm template` validates values before it renders; `render` alone does not.
                loaded.validate_schema(loaded.merge_values(one))
                manifests = loaded.render(one, name=name, namespace=namespace)
                answers.append({"Ok": manifests})
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


def package(chart, into, time):
    """Helm's archive, with the same bytes for the same chart: sorted names, one time, no owner."""
    archive = helm.package(chart, destination=into)
    with tarfile.open(archive) as source:
        members = [m for m in source.getmembers() if m.isfile()]
        # Helm reads the first file as the chart's own.
        members.sort(key=lambda m: (not m.name.endswith("/Chart.yaml"), m.name))
        text = io.BytesIO()
        with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as target:
            for member in members:
                copy = tarfile.TarInfo(member.name)
                copy.size, copy.mtime, copy.mode = member.size, time, 0o644
                target.addfile(copy, source.extractfile(member))
    half = archive + ".part"
    with open(half, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.getvalue())
    os.replace(half, archive)
    return archive


(task, arguments), = json.load(sys.stdin).items()
answer = {"render": render, "lint": lint, "package": package}[task](**arguments)
json.dump(answer, sys.stdout)
