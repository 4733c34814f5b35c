"""Helm's own code, for Rust: reads one request as JSON, prints one answer as JSON.

    {"render": {"chart": FOLDER_OR_ARCHIVE, "values": [...], "name": NAME, "namespace": NAMESPACE}}
        a list of {"Ok": {template: text}} or {"Err": text}, one for each item of values
    {"lint": {"chart": FOLDER_OR_ARCHIVE, "values": [...]}}
        a list of lists of findings
"""

import json
import sys

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


(task, arguments), = json.load(sys.stdin).items()
answer = {"render": render, "lint": lint}[task](**arguments)
json.dump(answer, sys.stdout)
