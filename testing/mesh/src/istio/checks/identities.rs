//! Whose requests count as whose, and which requests the filter sees at all.

use std::process::Command;

use anyhow::{Result, ensure};
use quotagate_support::http::{Client, Request};
use quotagate_support::jwt::SigningKey;
use quotagate_support::tls::Holder;
use quotagate_support::wait;
use quotagate_workspace::paths;
use serde_json::{Value, json};

use crate::checks::Checks;

use crate::istio::exact::{SENT, exact, exactly};
use crate::istio::mesh::{
    Mesh, PUSH, SHOP, TOKEN, UPSTREAM, Verdict, Verdicts, by, get, with_document,
};
use crate::istio::outside::ISSUER;

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.jwt", "quotas by verified claim; `jwt@payload.sub=...` names one", || {
        let used = exact(&mesh.burst(&by("jwt-a")?, SENT)?)?;
        let other = mesh.ask(&by("jwt-b")?)?.status;
        let stranger = SigningKey { key: b"the key of another, unknown party", ..ISSUER };
        let forged = get("/").bearer(&stranger.token(&json!({"sub": "jwt-b"}))?);
        let forged = mesh.ask(&forged)?.status;
        let usage = usage(mesh, "jwt@payload.sub=jwt-a")?;
        ensure!((other, forged) == (200, 401) && usage.contains("100    100  100 %"), "{usage}");
        Ok(format!("{used}, another subject 200, a forged token {forged}"))
    });
    checks.check("istio.addresses", "X-Forwarded-For counts as far as it is trusted", || {
        let from = |forged: usize, own: &str| {
            Ok(get("/").from_address(&format!("192.0.2.{forged}, {own}")))
        };
        let used = exact(&mesh.burst_of(SENT, |number| from(number % 250, "203.0.113.7"))?)?;
        let other = mesh.ask(&from(1, "203.0.113.8")?)?.status;
        let usage = usage(mesh, "ip=203.0.113.7")?;
        ensure!(other == 200 && usage.contains("100    100  100 %"), "{other}: {usage}");
        Ok(format!("{used} with 250 forged addresses, another address {other}"))
    });
    checks.check("istio.peer", "quotas by the name in a client's certificate", || peer(mesh));
    for (phase, claim, refused) in PHASES {
        checks.check(phase.name, claim, || phase_of(mesh, phase, refused));
    }
    checks.check("istio.priority", "within a phase, the higher priority runs first", || {
        let mut second = with_document(|_| {})?;
        second["metadata"]["name"] = json!("second");
        second["spec"]["priority"] = json!(20);
        mesh.plane.api.apply(&second)?;
        let index = |filters: &[String], part: &str| filters.iter().position(|n| n.contains(part));
        let order = wait::until("two filters", PUSH, || {
            let filters = mesh.filters()?;
            Ok(index(&filters, "ingress.second").zip(index(&filters, "ingress.quotagate")))
        });
        mesh.plane.api.delete(&second)?;
        wait::until_true("one filter", PUSH, || {
            Ok(index(&mesh.filters()?, "ingress.second").is_none())
        })?;
        let (second, first) = order?;
        ensure!(second < first, "filters {second} and {first}");
        Ok("priority 20 before 10".to_owned())
    });
    checks.check("istio.cors", "pre-flights count", || {
        let request = Request::new("OPTIONS", "/")
            .header("host", SHOP)
            .header("origin", "https://app.example.com")
            .header("access-control-request-method", "GET")
            .from_address("203.0.113.21");
        let allowed = mesh.ask(&request)?;
        ensure!(allowed.header("access-control-allow-origin").is_some(), "{allowed:?}");
        exactly(99, &mesh.burst(&request, SENT)?).map(|seen| format!("after one: {seen}"))
    });
    checks.check("istio.custom", "CUSTOM authorization runs first: nothing of it counts", || {
        custom(mesh)
    });
}

/// A phase of the filter.
#[derive(Clone, Copy)]
struct Phase {
    name: &'static str,
    phase: &'static str,
}

/// Whether requests that an AuthorizationPolicy refuses count, by phase.
const PHASES: [(Phase, &str, usize); 3] = [
    (
        Phase { name: "istio.phase_authz", phase: "AUTHZ" },
        "AUTHZ: after tokens, before AuthorizationPolicies",
        100,
    ),
    (
        Phase { name: "istio.phase_stats", phase: "STATS" },
        "STATS: after AuthorizationPolicies, so refused requests do not count",
        SENT,
    ),
    (
        Phase { name: "istio.phase_authn", phase: "AUTHN" },
        "AUTHN: before tokens, so all count by address",
        100,
    ),
];

/// Puts the filter into a phase. Of requests that an AuthorizationPolicy refuses, so many get its
/// 403; the others 429.
fn phase_of(mesh: &Mesh, Phase { name, phase }: Phase, refused: usize) -> Result<String> {
    let policy = deny("/refused");
    let mut plugin = with_document(|_| {})?;
    plugin["spec"]["phase"] = json!(phase);
    mesh.plane.api.apply(&plugin)?;
    mesh.plane.api.apply(&policy)?;
    let address = format!("203.0.113.{}", 30 + phase.len() + usize::from(phase == "AUTHN"));
    let request = |subject: &str| {
        let token = ISSUER.token(&json!({"sub": format!("{name}-{subject}")}))?;
        Ok::<_, anyhow::Error>(get("/refused").bearer(&token).from_address(&address))
    };
    mesh.until("the policy", &request("first")?, |answer| answer.status == 403)?;
    wait::until_true("the phase", PUSH, || Ok(seen_phase(&mesh.filters()?) == Some(phase)))?;
    let verdicts = mesh.burst(&request("all")?, SENT)?;
    // As another subject, from the same address.
    let other = mesh.ask(&request("other")?)?.status;
    let expected = if phase == "AUTHN" { 429 } else { 403 };
    let seen = verdicts.get(&Verdict::Refused(403)).copied().unwrap_or_default();
    let spent = if phase == "AUTHN" { seen <= refused } else { seen == refused };
    mesh.plane.api.apply(&with_document(|_| {})?)?;
    wait::until_true("the phase", PUSH, || Ok(seen_phase(&mesh.filters()?) == Some("AUTHZ")))?;
    mesh.plane.api.delete(&policy)?;
    ensure!(spent && other == expected, "{verdicts:?}, another subject {other}");
    Ok(format!("{verdicts:?}, another subject {other}"))
}

/// The phase of the filter, by its order.
fn seen_phase(filters: &[String]) -> Option<&'static str> {
    let index = |part: &str| filters.iter().position(|name| name.contains(part));
    let (own, tokens, rules) = (index("quotagate")?, index("jwt_authn")?, index("rbac")?);
    Some(match (own < tokens, own < rules) {
        (true, _) => "AUTHN",
        (false, true) => "AUTHZ",
        (false, false) => "STATS",
    })
}

/// An AuthorizationPolicy at the gateway that refuses a path.
pub fn deny(path: &str) -> Value {
    json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "refused", "namespace": "istio-ingress"},
        "spec": {"selector": {"matchLabels": {"istio": "ingress"}}, "action": "DENY",
            "rules": [{"to": [{"operation": {"paths": [path]}}]}]}})
}

fn peer(mesh: &Mesh) -> Result<String> {
    let document = with_document(|document| {
        document["identities"]["caller"] = json!([{"peer": {"san": "uri"}}]);
        document["policies"][0]["quota"] = json!(50);
    })?;
    mesh.plane.api.apply(&document)?;
    let client = |name: &str| {
        let own = mesh.plane.authority.issue(&Holder::default().uri(name))?;
        let tls = mesh.plane.authority.client(Some(&own))?;
        mesh.gateway.network.within(|| Client::connect_tls_to(SHOP, 8443, &tls))
    };
    let [cart, mail] =
        ["cart", "mail"].map(|name| format!("spiffe://partner.example/ns/shop/sa/{name}"));
    let mut shown = client(&cart)?;
    let counted = |limit: &Option<&str>| *limit == Some("50");
    wait::until_true("the document", PUSH, || {
        Ok(counted(&shown.send(&get("/"))?.header("x-ratelimit-limit")))
    })?;
    let mut verdicts = Verdicts::new();
    for _ in 0..SENT {
        *verdicts.entry(Verdict::of(&shown.send(&get("/"))?)).or_default() += 1;
    }
    let other = client(&mail)?.send(&get("/"))?.status;
    let anonymous = mesh.gateway.network.within(|| {
        let mut client = Client::connect_tls_to(SHOP, 8443, &mesh.tls)?;
        client.send(&get("/"))
    });
    let usage = usage(mesh, &format!("peer.uri={cart}"))?;
    mesh.restore()?;
    ensure!(verdicts.get(&Verdict::Counted).is_some_and(|&counted| counted < 50), "{verdicts:?}");
    ensure!(other == 200 && anonymous.is_err(), "{other}, {anonymous:?}");
    ensure!(usage.contains("50     50  100 %"), "{usage}");
    Ok(format!("50 of {SENT} by one SPIFFE name, another name {other}, no certificate: refused"))
}

/// What `quotagate usage` prints at the first store.
fn usage(mesh: &Mesh, partition: &str) -> Result<String> {
    let mut command = Command::new(paths::command());
    command.args(["usage", partition]).env("QUOTAGATE_TOKEN", TOKEN);
    let output = mesh.first()?.network.within(|| Ok(command.output()?))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// An external authorizer that answers what the request asks for.
fn custom(mesh: &Mesh) -> Result<String> {
    let provider = json!([{"name": "outside", "envoyExtAuthzHttp": {
        "service": "istio-ingress/upstream.shop.internal", "port": UPSTREAM,
        "includeRequestHeadersInCheck": ["x-answer-status"]}}]);
    mesh.plane.configure(|config| config["extensionProviders"] = provider)?;
    let mut policy = deny("/custom");
    policy["spec"]["action"] = json!("CUSTOM");
    policy["spec"]["provider"] = json!({"name": "outside"});
    mesh.plane.api.apply(&policy)?;
    let token = ISSUER.token(&json!({"sub": "custom"}))?;
    let request = |status: &str| get("/custom").bearer(&token).header("x-answer-status", status);
    let named = |filters: Vec<String>| filters.iter().any(|name| name.contains("ext_authz"));
    wait::until_true("the authorizer", PUSH, || Ok(named(mesh.filters()?)))?;
    let verdicts = mesh.burst(&request("403"), SENT)?;
    let admitted = mesh.ask(&get("/").bearer(&token))?;
    mesh.plane.api.delete(&policy)?;
    let left = admitted.header("x-ratelimit-remaining");
    let refused = verdicts == Verdicts::from([(Verdict::Refused(403), SENT)]);
    ensure!(refused && left == Some("99"), "{verdicts:?}, {left:?}");
    Ok(format!("{SENT} of {SENT} refused by the authorizer, then 99 of 100 left"))
}
