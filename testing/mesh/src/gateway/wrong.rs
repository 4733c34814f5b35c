//! Documents with faults, under running proxies and under one that starts meanwhile.

use anyhow::{Result, ensure};
use quotagate_support::envoy::Form;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::checks::Checks;
use crate::istio::mesh::Verdict;

use super::gateways::{GATEWAY, Gateways, PORTS, get, route, verdicts};
use super::plane::START;

/// The statistics that the alert looks at.
const REJECTED: &str = "envoy_listener_manager_lds_update_rejected";
const QUOTA: u32 = 500_000;
/// How a filter without a good document obeys `on_failure`.
const ROUTES: [(&str, Verdict); 2] =
    [("allow", Verdict::Uncounted), ("deny", Verdict::Refused(503))];

/// Runs the checks.
pub fn check(gateways: &Gateways, checks: &mut Checks) {
    let names = match gateways.form {
        Form::Wasm => [
            "eg.wrong_document",
            "eg.wrong_document_at_start",
            "eg.repaired",
            "eg.reject",
            "eg.reject_at_start",
        ],
        Form::Native => [
            "eg.native.wrong_document",
            "eg.native.wrong_document_at_start",
            "eg.native.repaired",
            "eg.native.reject",
            "eg.native.reject_at_start",
        ],
    };
    let [running, starting, repaired, reject, reject_at_start] = names;
    let put = |policy: Option<&str>, change: &dyn Fn(&mut Value), others: &[Value]| {
        let objects = ROUTES.iter().flat_map(|(name, _)| {
            let mut document = gateways.document(name, QUOTA, &json!({"client_ip": {}}));
            document["store"]["on_failure"] = json!(name);
            if let Some(policy) = policy {
                document["on_wrong_document"] = json!(policy);
            }
            change(&mut document);
            gateways.routed(name, &document)
        });
        gateways.plane.put(&objects.chain(others.iter().cloned()).collect::<Vec<_>>())
    };
    let good = |policy: Option<&str>| {
        put(policy, &|_| {}, &[])?;
        ROUTES.iter().try_for_each(|(name, _)| gateways.until_limit(&host(name), QUOTA))
    };
    let wrong = |document: &mut Value| document["policies"][0]["window"] = json!("0s");
    checks.check(
        running,
        "a running proxy keeps its document, and takes the rest of the update",
        || {
            good(None)?;
            let refused = || gateways.proxy().log().matches("configuration refused").count();
            let before = refused();
            put(None, &wrong, &[])?;
            gateways.until("the refusals", || Ok(refused() > before))?;
            put(None, &wrong, &[route("meanwhile", GATEWAY)])?;
            gateways.until("a route that came meanwhile", || {
                Ok(verdicts(PORTS[0], &[get("meanwhile.example")])? != [Verdict::Refused(404)])
            })?;
            ROUTES.iter().try_for_each(|(name, _)| gateways.until_limit(&host(name), QUOTA))?;
            let rejected = gateways.proxy().sample(REJECTED)?;
            ensure!(rejected == 0, "{rejected} updates rejected");
            Ok(format!("the old quota counts, a new route is served, {REJECTED} 0"))
        },
    );
    checks.check(starting, "a proxy that starts then listens, and decides by on_failure", || {
        gateways.replace_proxy()?.until_listening()?;
        let expected = ROUTES.map(|(_, verdict)| verdict);
        gateways.until("the decisions", || Ok(seen()? == expected))?;
        Ok(format!("allow and deny: {expected:?}"))
    });
    checks.check(repaired, "a good document ends it", || {
        good(None)?;
        Ok(format!("quota {QUOTA} counts"))
    });
    checks.check(
        reject,
        "on_wrong_document: reject: the whole old listener stays, the alert sees it",
        || {
            good(Some("reject"))?;
            let from = gateways.plane.log().len();
            put(Some("reject"), &wrong, &[])?;
            gateways.plane.until_logged(from, &["Envoy rejected the last update"])?;
            gateways.until("the alert's series", || Ok(gateways.proxy().sample(REJECTED)? > 0))?;
            ROUTES.iter().try_for_each(|(name, _)| gateways.until_limit(&host(name), QUOTA))?;
            Ok(format!("the old quota counts, {REJECTED} {}", gateways.proxy().sample(REJECTED)?))
        },
    );
    checks.check(reject_at_start, "a proxy that starts then is ready, but does not serve", || {
        let mut proxy = gateways.replace_proxy()?;
        let ready = || Ok(proxy.admin("/ready")?.contains("LIVE"));
        wait::until_true("readiness", START, ready)?;
        if gateways.form == Form::Native {
            wait::until_true("the rejection", START, || Ok(proxy.sample(REJECTED)? > 0))?;
            ensure!(seen().is_err(), "it listens");
            drop(proxy);
            good(None)?;
            return Ok("nothing listens while /ready says LIVE; a good document ends it".to_owned());
        }
        proxy.until_listening()?;
        drop(proxy);
        let seen = seen()?;
        ensure!(seen.iter().all(|verdict| *verdict == Verdict::Refused(503)), "{seen:?}");
        let other = verdicts(PORTS[0], &[get("any.example")])?;
        good(None)?;
        Ok(format!("503 on its routes, {other:?} on others; a good document ends it"))
    });
}

fn host(name: &str) -> String {
    format!("{name}.example")
}

/// What becomes of a request to each route.
fn seen() -> Result<Vec<Verdict>> {
    let requests = ROUTES.map(|(name, _)| get(&host(name)));
    verdicts(PORTS[0], &requests)
}
