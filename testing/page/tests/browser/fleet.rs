//! The page with a real Envoy and traffic: it shows what happens, and a change on the page changes
//! the answers to clients.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_page::browser::{Browser, LIMIT};
use quotagate_page::page;
use quotagate_page::rig::{Rig, Traffic};
use quotagate_support::http::Request;
use quotagate_support::store::StoreProcess;
use quotagate_support::{jwt, wait};
use serde_json::{Value, json};

/// The windows are so long that they do not end during a test.
pub fn per_caller(quota: u64) -> Value {
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "10s", "on_failure": "deny"},
        "identities": {"caller": [{"jwt": {"claim": "sub"}}]},
        "policies": [{"name": "per-caller", "partition_by": ["caller"], "quota": quota, "window": "366d"}]
    })
}

pub fn of(name: &str) -> Result<Request> {
    Ok(Request::get("/").bearer(&jwt::token(name)?))
}

/// Counts the admitted requests of `caller`. Starts with the first admitted one and stops at the
/// next refusal.
fn admitted_from_now(rig: &Rig, caller: &str) -> Result<usize> {
    let request = of(caller)?;
    wait::until_true(&format!("{caller} to be admitted"), LIMIT, || {
        Ok(rig.status(&request)? == 200)
    })?;
    let mut admitted = 1;
    while rig.status(&request)? == 200 {
        admitted += 1;
        anyhow::ensure!(admitted < 100, "no end");
    }
    Ok(admitted)
}

pub fn until_refused(rig: &Rig, caller: &str) -> Result<()> {
    let request = of(caller)?;
    wait::until_true(&format!("{caller} to be refused"), LIMIT, || Ok(rig.status(&request)? == 429))
}

fn opened(rig: &Rig) -> Result<Browser> {
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#policies", "per-caller")?;
    Ok(browser)
}

/// A policy in mode shadow that would refuse alice and bob, with their requests, on the page.
fn shadowed() -> Result<(Rig, Traffic, Browser)> {
    let mut document = per_caller(1);
    let policy = document.pointer_mut("/policies/0").and_then(Value::as_object_mut);
    policy.context("a policy")?.insert("mode".to_owned(), json!("shadow"));
    let rig = Rig::start(document)?;
    let traffic = rig.traffic(vec![of("alice")?, of("bob")?], Duration::from_millis(50));
    let browser = opened(&rig)?;
    browser.wait_for("#would", "jwt.sub=alice")?;
    Ok((rig, traffic, browser))
}

#[test]
fn numbers_appear_and_move() -> Result<()> {
    let rig = Rig::start(per_caller(1_000_000))?;
    let traffic = rig.traffic(vec![of("alice")?, of("bob")?], Duration::from_millis(20));
    let browser = opened(&rig)?;
    browser.wait_for("#policies", "1,000,000 per 366 d")?;
    browser.wait_for("#fullest", "jwt.sub=alice")?;
    browser.wait_for("#backend", "redis")?;
    browser.wait_for("#publishers", "1 store")?;
    let used = "return Number(document.querySelector('#fullest td').textContent.split(' of ')[0].replaceAll(',', ''))";
    let used = || Ok::<_, anyhow::Error>(browser.run(used, vec![])?.as_u64().unwrap_or(0));
    let first = used()?;
    wait::until_true("more units used", LIMIT, || Ok(used()? > first + 10))?;
    let rate = "return parseFloat(document.querySelector('.rate b').textContent)";
    wait::until_true("requests per second", LIMIT, || {
        Ok(browser.run(rate, vec![])?.as_f64().is_some_and(|rate| rate > 1.0 && rate < 60.0))
    })?;
    let bars = "return document.querySelector('path.admitted').getAttribute('d').length";
    assert!(
        browser.run(bars, vec![])?.as_u64().is_some_and(|length| length > 10),
        "the chart is drawn"
    );
    let calls = "return parseFloat(document.querySelector('#calls').textContent)";
    wait::until_true("calls per second", LIMIT, || {
        Ok(browser.run(calls, vec![])?.as_f64().is_some_and(|calls| calls > 1.0))
    })?;
    traffic.end()
}

#[test]
fn page_of_one_store_shows_what_another_one_counted() -> Result<()> {
    let rig = Rig::start(per_caller(5))?;
    until_refused(&rig, "alice")?;
    let traffic = rig.traffic(vec![of("bob")?], Duration::from_millis(50));
    let idle = StoreProcess::start(&rig.redis.url(), &[])?;
    let browser = Browser::start()?;
    page::open(&browser, idle.admin_port())?;
    browser.wait_for("#publishers", "2 stores")?;
    browser.wait_for("#fullest", "jwt.sub=alice")?;
    browser.wait_for("#refused", "jwt.sub=bob")?;
    let bars = "return document.querySelector('path.refused').getAttribute('d').length";
    wait::until_true("requests that the other store saw", LIMIT, || {
        Ok(browser.run(bars, vec![])?.as_u64().is_some_and(|length| length > 10))
    })?;
    traffic.end()
}

#[test]
fn dial_set_on_the_page_changes_responses() -> Result<()> {
    let rig = Rig::start(per_caller(5))?;
    assert_eq!(admitted_from_now(&rig, "alice")?, 5);
    // Filters send reports only while they have traffic.
    let traffic = rig.traffic(vec![of("bob")?], Duration::from_millis(100));
    let browser = opened(&rig)?;
    browser.wait_for("#refused", "jwt.sub=bob")?;
    let words = page::review_dial(&browser, "per-caller", &[("quota", "8"), ("for", "1h")])?;
    let promised = "Policy per-caller of domain shop will grant each ";
    let bound = " at most 8 per 366 d, counted over all proxies, within 10 s, until ";
    assert!(
        words.starts_with(promised) && words.contains(bound) && words.contains("(1 h)"),
        "{words}"
    );
    assert_eq!(rig.status(&of("alice")?)?, 429, "nothing changes before the confirmation");
    page::agree(&browser)?;
    assert_eq!(admitted_from_now(&rig, "alice")?, 3, "8 less 5");
    browser.wait_for("#policies", "8 per 366 d")?;
    browser.wait_for("#policies", "configured: 5 per 366 d, enforce; reverts in 59 min")?;
    browser.wait_for("#dials", "59 min")?;
    browser.wait_for("#history", "ada")?;

    page::review_dial(&browser, "per-caller", &[("mode", "off"), ("for", "1h")])?;
    page::agree(&browser)?;
    wait::until_true("refusals to end", LIMIT, || Ok(rig.status(&of("alice")?)? == 200))?;
    browser.click("#dials button")?;
    browser
        .wait_for("#confirm-words", "returns to 5 per 366 d, enforce, deny when the store fails")?;
    page::agree(&browser)?;
    until_refused(&rig, "alice")?;
    browser.wait_for("#no-dials", "No dial is set")?;
    traffic.end()
}

#[test]
fn dial_reverts_when_it_expires() -> Result<()> {
    let rig = Rig::start(per_caller(2))?;
    assert_eq!(admitted_from_now(&rig, "alice")?, 2);
    let browser = opened(&rig)?;
    page::review_dial(&browser, "per-caller", &[("mode", "shadow"), ("for", "12s")])?;
    page::agree(&browser)?;
    wait::until_true("refusals to end", LIMIT, || Ok(rig.status(&of("alice")?)? == 200))?;
    let left = browser.wait_for("#dials td:nth-child(3)", " s")?;
    let seconds: u32 = left.trim_end_matches(" s").parse()?;
    assert!(seconds <= 12, "{left}");
    browser.wait_for("#no-dials", "No dial is set")?;
    until_refused(&rig, "alice")
}

#[test]
fn override_set_on_the_page_applies_to_one_partition() -> Result<()> {
    let rig = Rig::start(per_caller(3))?;
    assert_eq!(admitted_from_now(&rig, "alice")?, 3);
    assert_eq!(admitted_from_now(&rig, "bob")?, 3);
    let browser = opened(&rig)?;
    let words = page::review_override(&browser, "jwt.sub=alice", "5", "2h")?;
    let promised = "Partition jwt.sub=alice will be admitted at most 5 per 366 d by policy per-caller of domain shop, within 10 s, until ";
    assert!(words.starts_with(promised) && words.contains("(2 h)"), "{words}");
    page::agree(&browser)?;
    assert_eq!(admitted_from_now(&rig, "alice")?, 2, "5 less 3");
    assert_eq!(rig.status(&of("bob")?)?, 429);
    browser.wait_for("#overrides", "5 per 366 d")?;
    browser.wait_for("#overrides", "1 h 59 min")?;

    browser.click("#overrides td button")?;
    browser.wait_for(
        "#confirm-words",
        "returns to what policy per-caller of domain shop grants every partition",
    )?;
    page::agree(&browser)?;
    browser.wait_for("#no-overrides", "No partition has an override")?;
    until_refused(&rig, "alice")
}

#[test]
fn shadow_policy_is_shown_with_its_victims_and_enforced_only_if_that_is_meant() -> Result<()> {
    let (rig, traffic, browser) = shadowed()?;
    page::review_override(&browser, "jwt.sub=alice", "1", "1h")?;
    let outcome = page::agree(&browser)?;
    assert!(
        outcome.contains("per-caller: in mode shadow, which counts and refuses none"),
        "{outcome}"
    );
    browser.click("#outcome button")?;

    browser.click("#new-dial")?;
    for (field, value) in [("policy", "all policies"), ("mode", "enforce"), ("by", "ada")] {
        page::set(&browser, &format!("#dial-{field}"), value)?;
    }
    browser.click("#dial-form button.main")?;
    browser.wait_for("#confirm-words", "every policy")?;
    browser.click("#confirm-do")?;
    browser.wait_for("#dial-error", "also enforce per-caller (shadow)")?;
    browser.click("#dial-shadow")?;
    browser.click("#dial-form button.main")?;
    browser.wait_for("#confirm-words", "every policy")?;
    page::agree(&browser)?;
    until_refused(&rig, "bob")?;
    traffic.end()
}

#[test]
fn policy_refuses_a_part_of_its_partitions() -> Result<()> {
    let (rig, traffic, browser) = shadowed()?;
    browser.click("#new-dial")?;
    let review = |share: &str| -> Result<()> {
        page::set(&browser, "#dial-share", share)?;
        browser.click("#dial-form button.main")
    };
    for (field, value) in [("policy", "per-caller"), ("by", "ada")] {
        page::set(&browser, &format!("#dial-{field}"), value)?;
    }
    for (wrong, why) in [
        ("5", "Write a share such as 5 %"),
        ("101 %", "Write a share such as 5 %"),
        ("jwt.sub=bob, 7%", "Write a share such as 5 %"),
        ("header.x-key=k", "The value of header.x-key may be a secret"),
    ] {
        review(wrong)?;
        browser.wait_for("#dial-error", why)?;
    }
    // It is no secret, but this policy does not count by it.
    browser.click("#dial-plain")?;
    review("header.x-key=k")?;
    browser.wait_for("#confirm-words", "for header.x-key=k only")?;
    browser.click("#confirm-do")?;
    browser.wait_for("#dial-error", "no partition contains header.x-key=k")?;
    review("5 % jwt.sub=a%20b")?;
    let whom = "for 5 % of its partitions and jwt.sub=a%20b only";
    browser.wait_for("#confirm-words", whom)?;
    browser.click("#confirm-back")?;
    page::set(&browser, "#dial-mode", "enforce")?;
    review("jwt.sub=bob")?;
    browser.wait_for("#dial-error", "Leave it as it is")?;
    page::set(&browser, "#dial-mode", "")?;
    review("jwt.sub=bob")?;
    browser.wait_for("#confirm-words", "refuse what is over the quota for jwt.sub=bob only")?;
    page::agree(&browser)?;
    until_refused(&rig, "bob")?;
    assert_eq!(rig.status(&of("alice")?)?, 200);
    browser.wait_for("#dials", "shadow, enforced for jwt.sub=bob")?;
    browser.click("#outcome button")?;
    let kept = page::review_dial(&browser, "per-caller", &[("quota", "7")])?;
    assert!(kept.contains("stay too: shadow, enforced for jwt.sub=bob"), "{kept}");
    traffic.end()
}

#[test]
fn one_override_on_the_page_covers_a_party_in_all_policies() -> Result<()> {
    let rig = Rig::start(per_caller(1000))?;
    assert_eq!(rig.status(&of("mallory")?)?, 200);
    let browser = opened(&rig)?;
    browser.click("#new-override")?;
    for (field, value) in
        [("policy", "all policies"), ("partition", "jwt.sub=mallory,*"), ("by", "ada")]
    {
        page::set(&browser, &format!("#override-{field}"), value)?;
    }
    browser.click("#allow-blocked")?;
    browser.click("#override-form button.main")?;
    browser
        .wait_for("#confirm-words", "will be refused everything by all policies of domain shop")?;
    page::agree(&browser)?;
    until_refused(&rig, "mallory")?;
    assert_eq!(rig.status(&of("alice")?)?, 200);
    browser.wait_for("#overrides", "jwt.sub=mallory,*")?;
    browser.click("#overrides td button")?;
    browser.wait_for("#confirm-words", "returns to what each policy of domain shop grants")?;
    page::agree(&browser)?;
    wait::until_true("mallory to be admitted", LIMIT, || Ok(rig.status(&of("mallory")?)? == 200))
}

#[test]
fn client_names_are_rendered_as_text() -> Result<()> {
    let mut document = per_caller(1);
    document["identities"] = json!({"caller": [{"header": {"name": "x-tenant"}}]});
    let rig = Rig::start(document)?;
    let evil = |name: &[u8]| Request::get("/").raw_header(b"x-tenant", name);
    let names: [&[u8]; 3] = [
        b"<img src=x onerror=\"window.hit=1\">",
        b"\"><script>window.hit=1</script>",
        "\u{202e}tset".as_bytes(),
    ];
    for name in names {
        assert_eq!((rig.status(&evil(name))?, rig.status(&evil(name))?), (200, 429));
    }
    let browser = opened(&rig)?;
    browser.wait_for("#fullest", "header.x-tenant=%3Cimg%20src%3Dx")?;
    browser.wait_for("#fullest", "header.x-tenant=%E2%80%AEtset")?;
    let hurt =
        "return [window.hit ?? 0, document.querySelectorAll('main img, main script').length]";
    assert_eq!(browser.run(hurt, vec![])?, json!([0, 0]));
    Ok(())
}

#[test]
fn published_document_is_shown_with_the_proxies_that_have_it() -> Result<()> {
    let mut document = per_caller(5);
    document["live"] = json!(true);
    let rig = Rig::start(document)?;
    // It reports without traffic.
    let browser = opened_without_traffic(&rig)?;
    browser
        .wait_for("#documents-says", "no document was published; 1 of 1 live proxy has its own.")?;
    browser.wait_for("#documents", "its own")?;
    let wish = json!({"document": per_caller(6), "by": "ann"});
    rig.store.operate("POST", "/v1/documents", &wish)?;
    browser.wait_for("#documents-says", "shop: number 1 (")?;
    browser.wait_for("#documents-says", "; 1 of 1 live proxy has it.")?;
    browser.wait_for("#documents", "number 1, ")?;
    browser.wait_for("#documents", "published")?;
    Ok(())
}

#[test]
fn lost_backend_is_shown_first() -> Result<()> {
    let mut rig = Rig::start(per_caller(5))?;
    let browser = opened_without_traffic(&rig)?;
    browser.wait_for("#health", "Store ready")?;
    rig.redis.stop()?;
    browser.wait_for("#faults", "At fault: ")?;
    browser.wait_for("#health", "Store at fault")?;
    rig.store.kill()?;
    browser.wait_for("#connection", "Reconnecting")?;
    browser.wait_for("#trouble", "Not live: ")?;
    Ok(())
}

fn opened_without_traffic(rig: &Rig) -> Result<Browser> {
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    Ok(browser)
}
