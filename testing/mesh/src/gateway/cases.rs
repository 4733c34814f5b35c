//! Whom the filter counts, where in the chain it runs, and which policy applies: one route for each
//! case.

use anyhow::{Result, ensure};
use quotagate_support::http::Request;
use serde_json::{Value, json};

use crate::checks::Checks;
use crate::istio::mesh::Verdict;

use super::gateways::{
    GATEWAY, Gateways, PORTS, QUOTA, SECOND, ask, by, get, policy, route, target, verdicts,
};
use super::plane::secret;

/// What a user's `responseOverride` answers.
const OWN_ANSWER: &str = "come back later";

/// Requests to the route of a case, and what becomes of them.
struct Case {
    name: &'static str,
    claim: &'static str,
    /// What tells callers apart; without one, the route has no document of its own.
    caller: Option<Value>,
    /// The route's SecurityPolicy.
    security: Option<Value>,
    gateway: &'static str,
    /// Other objects.
    others: Vec<Value>,
    requests: Vec<Request>,
    /// What becomes of each: `counted`, `uncounted` or the status of a refusal.
    expected: &'static str,
}

/// Runs the checks.
pub fn check(gateways: &Gateways, checks: &mut Checks) {
    let cases = match cases(gateways) {
        Ok(cases) => cases,
        Err(error) => return checks.check("eg.cases", "they can be made", || Err(error)),
    };
    let objects: Vec<Value> = cases.iter().flat_map(|case| case.objects(gateways)).collect();
    let routes: Vec<&str> = cases.iter().map(Case::route).collect();
    let applied = gateways.plane.put(&objects).and_then(|()| gateways.until_settled(&routes));
    checks.check("eg.applied", "policies at routes are taken beside the shipped files", || {
        applied.map(|()| format!("{} objects", objects.len()))
    });
    for case in cases {
        checks.check(case.name, case.claim, || {
            let port = if case.gateway == SECOND { PORTS[1] } else { PORTS[0] };
            let seen: Vec<String> = verdicts(port, &case.requests)?.into_iter().map(word).collect();
            let seen = seen.join(" ");
            ensure!(seen == case.expected, "{seen}, not {}", case.expected);
            Ok(seen)
        });
    }
    checks.check("eg.overridden", "that answer has no headers of the quota", || {
        let answer = ask(PORTS[0], &get("override.example"))?;
        ensure!(answer.status == 429 && answer.text() == OWN_ANSWER, "{answer:?}");
        let names = answer.headers.iter().map(|(name, _)| name.as_str());
        let kept: Vec<_> =
            names.filter(|name| name.contains("ratelimit") || *name == "retry-after").collect();
        ensure!(kept.is_empty(), "it has {kept:?}");
        Ok("neither x-ratelimit-* nor retry-after".to_owned())
    });
    checks.check("eg.conflicts", "a second policy at the same target is Conflicted", || {
        let log = gateways.plane.log();
        let conflicted = |kind: &str| {
            let of_kind = |part: &&str| part.trim_start().starts_with(kind);
            log.split("Got new status for").filter(of_kind).any(|part| part.contains("Conflicted"))
        };
        ensure!(conflicted("EnvoyExtensionPolicy"), "no conflict of two extension policies");
        ensure!(conflicted("ClientTrafficPolicy"), "no conflict of two traffic policies");
        Ok("EnvoyExtensionPolicy and ClientTrafficPolicy".to_owned())
    });
}

fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Counted => "counted".to_owned(),
        Verdict::Uncounted => "uncounted".to_owned(),
        Verdict::Refused(status) => status.to_string(),
    }
}

impl Case {
    /// The name of its route.
    fn route(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    fn objects(&self, gateways: &Gateways) -> Vec<Value> {
        let name = self.route();
        let at_route = target("HTTPRoute", name);
        let mut all = vec![route(name, self.gateway)];
        if let Some(caller) = &self.caller {
            let document = gateways.document(name, QUOTA, caller);
            all.push(gateways.extension(name, &at_route, &document));
        }
        if let Some(security) = &self.security {
            let mut spec = security.clone();
            spec["targetRefs"] = json!([at_route]);
            all.push(policy("SecurityPolicy", name, &spec));
        }
        all.extend(self.others.iter().cloned());
        all
    }
}

/// Trusts one load balancer.
fn one_hop(name: &str, gateway: &str) -> Value {
    policy(
        "ClientTrafficPolicy",
        name,
        &json!({
            "targetRefs": [target("Gateway", gateway)],
            "clientIPDetection": {"xForwardedFor": {"numTrustedHops": 1}},
        }),
    )
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases(gateways: &Gateways) -> Result<Vec<Case>> {
    let jwt = json!({"jwt": {"claim": "sub", "payload": "issuer"}});
    let address = json!({"client_ip": {}});
    let header = |name: &str| json!({"header": {"name": name}});
    let key = |key: &str| get("keys.example").header("x-api-key", key);
    let user = |credentials: &str| get("basic.example").header("authorization", credentials);
    let (alice, bob) = ("Basic YWxpY2U6c2VjcmV0", "Basic Ym9iOnNlY3JldA==");
    let addressed = |host: &str, addresses: &str| get(host).from_address(addresses);
    let staff = |host: &str, role: &str| get(host).header("x-role", role);
    let only_staff = json!({"authorization": {"defaultAction": "Deny", "rules": [
        {"action": "Allow", "principal": {"headers": [{"name": "x-role", "values": ["staff"]}]}}]}});
    let preflight = Request::new("OPTIONS", "/")
        .header("host", "preflight.example")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "GET");
    let forged = by("jwt.example", "alice")?.header("x-jwt-sub", "mallory");
    let refs = |name: &str| json!({"credentialRefs": [{"name": name}]});
    let mut keys = refs("keys");
    keys["extractFrom"] = json!([{"headers": ["x-api-key"]}]);
    keys["forwardClientIDHeader"] = json!("x-client-id");
    let at_route = |name: &str| json!({"targetRefs": [target("HTTPRoute", name)]});
    let mut lua = at_route("lua");
    lua["lua"] = json!([{"type": "Inline", "inline": "function envoy_on_request(r) end"}]);
    let mut overriding = at_route("override");
    overriding["responseOverride"] = json!([{"match": {"statusCodes": [{"value": 429}]},
        "response": {"contentType": "text/plain", "body": {"type": "Inline", "inline": OWN_ANSWER}}}]);
    let grpc_web = get("grpcweb.example").header("content-type", "application/grpc-web+proto");
    let case = |name, claim, caller: Option<Value>, requests, expected| Case {
        name,
        claim,
        caller,
        security: None,
        gateway: GATEWAY,
        others: Vec::new(),
        requests,
        expected,
    };
    let second_policy = gateways.extension(
        "z-second",
        &target("HTTPRoute", "conflict"),
        &gateways.document("conflict-2", 1, &address),
    );
    Ok(vec![
        case(
            "eg.jwt",
            "callers are whom their tokens say, from a remote JWKS",
            Some(jwt.clone()),
            vec![
                by("jwt.example", "alice")?,
                forged.clone(),
                forged,
                by("jwt.example", "bob")?,
                get("jwt.example").bearer("e30.e30.e30"),
            ],
            "counted counted 429 counted 401",
        ),
        Case {
            security: Some(json!({"apiKeyAuth": keys})),
            others: vec![secret("default", "keys", &json!({"alice": "key-a", "bob": "key-b"}))],
            ..case(
                "eg.keys",
                "callers are the owners of their API keys, whatever headers they send",
                Some(header("x-client-id")),
                vec![
                    key("key-a"),
                    key("key-a").header("x-client-id", "mallory"),
                    key("key-a"),
                    key("key-b"),
                    key("no-key"),
                ],
                "counted counted 429 counted 401",
            )
        },
        Case {
            security: Some(json!({"basicAuth": {"users": {"name": "users"},
                "forwardUsernameHeader": "x-user"}})),
            others: vec![secret(
                "default",
                "users",
                &json!({
                ".htpasswd": "alice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n\
                              bob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"}),
            )],
            ..case(
                "eg.basic",
                "callers are whom basic auth says, whatever headers they send",
                Some(header("x-user")),
                vec![
                    user(alice),
                    user(alice).header("x-user", "mallory"),
                    user(alice),
                    user(bob),
                    user("Basic YWxpY2U6d3Jvbmc="),
                ],
                "counted counted 429 counted 401",
            )
        },
        Case {
            others: vec![one_hop("mine", GATEWAY)],
            ..case(
                "eg.proxied",
                "the user's ClientTrafficPolicy takes effect: addresses behind a proxy",
                Some(address.clone()),
                vec![
                    addressed("proxied.example", "203.0.113.1"),
                    addressed("proxied.example", "203.0.113.9, 203.0.113.1"),
                    addressed("proxied.example", "203.0.113.1"),
                    addressed("proxied.example", "203.0.113.2"),
                ],
                "counted counted 429 counted",
            )
        },
        Case {
            gateway: SECOND,
            // As the files contained one until it was removed.
            others: vec![
                policy(
                    "ClientTrafficPolicy",
                    "a-first",
                    &json!({
                    "targetRefs": [target("Gateway", SECOND)],
                    "http2": {"initialStreamWindowSize": "64Ki"}}),
                ),
                one_hop("b-second", SECOND),
            ],
            ..case(
                "eg.blocked",
                "beside another ClientTrafficPolicy, it does not",
                Some(address.clone()),
                vec![
                    addressed("blocked.example", "203.0.113.1"),
                    addressed("blocked.example", "203.0.113.2"),
                    addressed("blocked.example", "203.0.113.3"),
                ],
                "counted counted 429",
            )
        },
        Case {
            security: Some(only_staff.clone()),
            ..case(
                "eg.refused",
                "requests that authorization refuses are counted",
                Some(address.clone()),
                vec![
                    staff("refused.example", "none"),
                    staff("refused.example", "none"),
                    staff("refused.example", "staff"),
                ],
                "403 403 429",
            )
        },
        Case {
            gateway: SECOND,
            security: Some(only_staff),
            ..case(
                "eg.ordered",
                "with our filterOrder, they are not",
                Some(address.clone()),
                vec![
                    staff("ordered.example", "none"),
                    staff("ordered.example", "none"),
                    staff("ordered.example", "staff"),
                    staff("ordered.example", "staff"),
                    staff("ordered.example", "staff"),
                ],
                "403 403 counted counted 429",
            )
        },
        Case {
            security: Some(json!({"cors": {"allowOrigins": ["https://app.example"],
                "allowMethods": ["GET"]}})),
            ..case(
                "eg.preflight",
                "pre-flight requests are not counted",
                Some(address.clone()),
                vec![
                    preflight.clone(),
                    preflight.clone(),
                    preflight,
                    get("preflight.example"),
                    get("preflight.example"),
                    get("preflight.example"),
                ],
                "uncounted uncounted uncounted counted counted 429",
            )
        },
        Case {
            others: vec![policy("EnvoyExtensionPolicy", "lua", &lua)],
            ..case(
                "eg.lua",
                "a route's policy replaces the Gateway's: only Lua, no quota",
                None,
                vec![get("lua.example"); 2],
                "uncounted uncounted",
            )
        },
        Case {
            others: vec![policy("EnvoyExtensionPolicy", "exempt", &at_route("exempt"))],
            ..case(
                "eg.exempt",
                "a route's policy without extensions exempts it",
                None,
                vec![get("exempt.example"); 2],
                "uncounted uncounted",
            )
        },
        Case {
            others: vec![second_policy],
            ..case(
                "eg.conflict",
                "a second policy at the same route is ignored",
                Some(address.clone()),
                vec![get("conflict.example"); 3],
                "counted counted 429",
            )
        },
        Case {
            others: vec![policy("BackendTrafficPolicy", "override", &overriding)],
            ..case(
                "eg.override",
                "a responseOverride answers in the place of a refusal",
                Some(address.clone()),
                vec![get("override.example"); 3],
                "counted counted 429",
            )
        },
        case(
            "eg.grpcweb",
            "gRPC-Web clients get a plain 429",
            Some(address),
            vec![grpc_web; 3],
            "counted counted 429",
        ),
        case(
            "eg.unroutable",
            "a request without a route is not counted",
            None,
            vec![get("nowhere.invalid"); 2],
            "404 404",
        ),
        case(
            "eg.last",
            "a route without a policy has the Gateway's",
            None,
            // A caller of its own: other checks may have spent the quota of the address.
            vec![by("last.example", "last")?],
            "counted",
        ),
    ])
}
