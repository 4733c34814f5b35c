"""Makes the schemas of this folder from published CRDs: strip.py FOLDER SOURCE=FILE... KIND...

Keeps what a server checks: names, types, bounds, patterns. Drops descriptions, CEL rules, `status`,
and everything below DEPTH levels of `spec`, where only the names of fields stay. Strict: fields
that the CRD does not name are refused, as `kubectl apply --validate=strict` does.
"""

import json
import sys

import yaml

DEPTH = 7
DROPPED = {"description", "default", "x-kubernetes-validations", "x-kubernetes-list-type"}
DROPPED |= {"x-kubernetes-list-map-keys", "x-kubernetes-map-type", "example", "format", "title"}


def strip(schema, depth):
    if depth == 0:
        return {}
    out = {}
    for key, value in schema.items():
        if key in DROPPED:
            continue
        if key == "properties":
            out[key] = {name: strip(one, depth - 1) for name, one in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = strip(value, depth)
        elif key in ("anyOf", "oneOf", "allOf"):
            out[key] = [strip(one, depth) for one in value]
        else:
            out[key] = value
    if out.pop("x-kubernetes-int-or-string", False):
        out["type"] = ["integer", "string"]
    free = out.pop("x-kubernetes-preserve-unknown-fields", False)
    if "type" in out and "properties" in out and not free:
        out.setdefault("additionalProperties", False)
    return out


folder, *arguments = sys.argv[1:]
files = [a.split("=", 1) for a in arguments if "=" in a]
kinds = {a for a in arguments if "=" not in a}
for source, file in files:
    for crd in yaml.safe_load_all(open(file)):
        kind = crd and crd["spec"]["names"]["kind"]
        if kind not in kinds:
            continue
        group = crd["spec"]["group"]
        # The newest comes first.
        version = crd["spec"]["versions"][0]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        name = f"{group}_{version['name']}_{kind}.json"
        schema = {"$comment": f"{source}, without descriptions", **strip(spec, DEPTH)}
        with open(f"{folder}/{name}", "w") as target:
            json.dump(schema, target, separators=(",", ":"), sort_keys=True)
            target.write("\n")
