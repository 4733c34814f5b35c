//! The rules in CEL that the API server holds objects to, each with a message that names the fault.
//!
//! Rules over lists have fixed messages: an expression for a message that searches a list costs
//! more than the API server allows.

use serde_json::{Value, json};

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// A rule whose message is an expression.
fn telling(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "messageExpression": message})
}

fn exactly_one(of: &str, fields: &[&str]) -> Value {
    let present: Vec<String> = fields.iter().map(|field| format!("has(self.{field})")).collect();
    let sum = format!("[{}].exists_one(x, x)", present.join(", "));
    rule(&sum, &format!("{of}: give exactly one of {}", fields.join(", ")))
}

/// Rules of the whole object.
pub(crate) fn object() -> Value {
    json!([rule(
        "size(self.metadata.name) <= 63 && \
         self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
        "metadata.name: at most 63 small letters, digits and -, because names in the document \
         contain it",
    )])
}

/// Rules of `spec`.
pub(crate) fn spec() -> Value {
    let mut rules = vec![
        rule(
            "has(self.policies) != (has(self.defaults) || has(self.overrides))",
            "give policies, or for a Gateway defaults and overrides, and not both",
        ),
        rule(
            "(!has(self.defaults) && !has(self.overrides)) || \
             self.targetRefs.all(t, t.kind == 'Gateway')",
            "defaults and overrides are for targets of kind Gateway: they apply to the routes \
             below it",
        ),
        rule(
            "self.targetRefs.all(t, t.kind == self.targetRefs[0].kind)",
            "targetRefs: all targets must be of one kind. Write a QuotaPolicy for each kind",
        ),
        rule(
            "self.targetRefs.all(a, self.targetRefs.exists_one(b, a.name == b.name && \
             (has(a.sectionName) ? a.sectionName : '') == \
             (has(b.sectionName) ? b.sectionName : '')))",
            "targetRefs: a target is named twice",
        ),
        rule(
            "!has(self.identities) || self.identities.all(n, \
             n.matches('^[A-Za-z0-9._-]{1,64}$') && !(n in ['method', 'host', 'path', 'route']))",
            "identities: a name has letters, digits and ._- and is none of method, host, path, \
             route",
        ),
    ];
    rules.push(rule(
        "!has(self.defaults) || !has(self.overrides) || self.defaults.policies.all(d, \
         !self.overrides.policies.exists(o, o.name == d.name))",
        "defaults and overrides have a policy of the same name: give each its own",
    ));
    for (guard, list) in [
        ("!has(self.policies)", "policies"),
        ("!has(self.defaults)", "defaults.policies"),
        ("!has(self.overrides)", "overrides.policies"),
    ] {
        let known = "n.startsWith('platform/') || n in ['method', 'host', 'path'] || \
                     (has(self.identities) && n in self.identities)";
        let mut known = rule(
            &format!("{guard} || self.{list}.all(p, p.partitionBy.all(n, {known}))"),
            "partitionBy names an identity that spec.identities does not define. Define it there, \
             or use platform/NAME for one of the platform",
        );
        if let Some(rule) = known.as_object_mut() {
            rule.insert("fieldPath".to_owned(), format!(".{list}").into());
        }
        rules.push(known);
    }
    rules.into()
}

/// Rules of a target.
pub(crate) fn target() -> Value {
    json!([
        rule(
            "!has(self.namespace)",
            "targetRefs[].namespace: a QuotaPolicy applies to objects of its own namespace only. \
             Write it into the namespace of the target",
        ),
        telling(
            "(self.group == 'gateway.networking.k8s.io' && \
             self.kind in ['Gateway', 'HTTPRoute', 'GRPCRoute']) || \
             (self.group == '' && self.kind == 'Service')",
            "'targetRefs[]: ' + self.kind + '.' + self.group + ' is no target. Use Gateway, \
             HTTPRoute or GRPCRoute of gateway.networking.k8s.io, or Service of the core group \
             (waypoints)'",
        ),
        telling(
            "!has(self.sectionName) || self.kind in ['Gateway', 'HTTPRoute']",
            "'targetRefs[].sectionName: ' + self.kind + ' has no sections here: Gateway has \
             listeners, HTTPRoute has named rules'",
        ),
    ])
}

/// Rules of a source of an identity.
pub(crate) fn source() -> Value {
    json!([exactly_one(
        "a source of an identity",
        &["jwt", "peer", "clientIP", "header", "cookie"]
    )])
}

/// Rules of a header that names a caller.
pub(crate) fn identity_header() -> Value {
    json!([rule(
        "self.name.lowerAscii() != 'host'",
        "header.name: host names no caller. Hosts come from the target",
    )])
}

/// Rules of a policy.
pub(crate) fn policy() -> Value {
    // A tier or an override may admit what the number of the policy does not.
    let others = "has(self.tiers) || (has(self.overrides) && size(self.overrides) > 0)";
    let named = |condition: &str, message: &str| {
        telling(condition, &format!("'policy ' + self.name + ': {message}'"))
    };
    json!([
        named("has(self.quota) != has(self.inFlight)", "give quota or inFlight, and not both"),
        named(
            "has(self.inFlight) || has(self.window) != has(self.calendar)",
            "give window or calendar, and not both",
        ),
        named(
            "!has(self.inFlight) || (!has(self.window) && !has(self.calendar))",
            "inFlight has no window, so leave window and calendar out",
        ),
        named(
            "!has(self.inFlight) || !has(self.sliding) || !self.sliding",
            "inFlight has no window that could slide",
        ),
        named(
            "!has(self.inFlight) || !has(self.lease)",
            "inFlight takes no lease, because each request holds its own slot",
        ),
        named("has(self.inFlight) || !has(self.maxWait)", "maxWait needs inFlight"),
        named(
            "!(has(self.sliding) && self.sliding && has(self.calendar))",
            "sliding needs a window, not a calendar",
        ),
        named(
            "!(has(self.sliding) && self.sliding && has(self.lease))",
            "a sliding window takes no lease",
        ),
        named(
            "!has(self.onMissing) || self.onMissing != 'Deny' || size(self.partitionBy) > 0",
            "onMissing Deny needs an identity in partitionBy",
        ),
        named(
            &format!(
                "!has(self.cost) || !has(self.cost.fixed) || !has(self.quota) || \
                 self.quota == 0 || self.cost.fixed <= self.quota || {others}"
            ),
            "no request could ever pass, because cost.fixed is above quota",
        ),
        named(
            &format!(
                "!has(self.cost) || !has(self.cost.fixed) || !has(self.inFlight) || \
                 self.inFlight == 0 || self.cost.fixed <= self.inFlight || {others}"
            ),
            "no request could ever pass, because cost.fixed is above inFlight",
        ),
        named(
            "!has(self.overrides) || size(self.overrides) == 0 || size(self.partitionBy) > 0",
            "overrides name values of a partition, and partitionBy is empty",
        ),
    ])
}

/// Rules of the length of a window.
pub(crate) fn window() -> Value {
    let units = [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000)];
    let ms = units.iter().rev().fold("1000".to_owned(), |rest, (unit, ms)| {
        format!("p.endsWith('{unit}') ? {ms} : {rest}")
    });
    let parts = "self.findAll('[0-9]+(w|d|h|ms|m|s)')";
    let total = format!("{parts}.map(p, int(p.find('[0-9]+')) * ({ms})).sum()");
    // A list of one, because the rule looks at the sum three times.
    json!([rule(
        &format!("[{total}].all(t, t > 0 && t <= {} && t % 1000 == 0)", 366 * 86_400_000_i64),
        "a window lasts whole seconds from 1s to 366d, such as 1m",
    )])
}

/// Rules of quotas by a claim.
pub(crate) fn tiers() -> Value {
    json!([rule(
        "self.quotas.all(name, size(name) > 0 && size(name) <= 128)",
        "tiers.quotas: the name of a tier has 1 to 128 bytes",
    )])
}

/// Rules of a condition on the path.
pub(crate) fn path() -> Value {
    json!([exactly_one("match.path", &["exact", "prefix", "suffix", "regex"])])
}

/// Rules of a condition on a header.
pub(crate) fn header() -> Value {
    json!([exactly_one("match.headers[]", &["exact", "prefix", "regex", "present"])])
}

/// Rules of a cost.
pub(crate) fn cost() -> Value {
    json!([exactly_one("cost", &["fixed", "header"])])
}

/// Rules of a cost in a header.
pub(crate) fn header_cost() -> Value {
    json!([rule(
        "!has(self.default) || self.default <= self.max",
        "cost.header.default is above max"
    )])
}

/// Rules of the quota of one partition or network.
pub(crate) fn partition_quota() -> Value {
    json!([
        exactly_one("overrides[]", &["value", "network"]),
        exactly_one("overrides[]", &["quota", "unlimited"]),
        rule(
            "!has(self.network) || isCIDR(self.network) || isIP(self.network)",
            "overrides[].network: no address or CIDR block",
        ),
        rule(
            "!has(self.network) || !isCIDR(self.network) || \
             string(cidr(self.network).masked()) == self.network",
            "overrides[].network: write the block without the bits of hosts, such as 10.0.0.0/8",
        ),
    ])
}
