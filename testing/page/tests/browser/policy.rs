//! The view of one policy.

use std::time::Duration;

use anyhow::Result;
use quotagate_page::browser::{Browser, LIMIT};
use quotagate_page::page;
use quotagate_page::rig::Rig;
use quotagate_support::http::Client;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::DELAY_HEADER;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::fleet::{of, per_caller, until_refused};

const LEFT: &str = "\u{e012}";

#[test]
fn policy_is_shown_with_its_requests_partitions_and_proxies() -> Result<()> {
    let mut document = per_caller(2);
    document["policies"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "all", "partition_by": [], "quota": 1_000_000, "window": "366d"}));
    let rig = Rig::start(document)?;
    until_refused(&rig, "alice")?;
    let traffic = rig.traffic(vec![of("alice")?, of("bob")?], Duration::from_millis(50));
    let browser = Browser::start()?;
    page::open_at(&browser, rig.store.admin_port(), "policy=per-caller")?;
    browser.wait_for("#h-policy", "per-caller")?;
    browser.wait_for("#policy-says", "2 per 366 d; deny when the store fails")?;
    browser.wait_for("#policy-counts", "each caller")?;
    browser.wait_for("#policy-counters", "1 store")?;
    browser.wait_for("#policy-documents", " at 1 of 1 proxies")?;
    browser.wait_for("#fullest", "jwt.sub=alice")?;
    browser.wait_for("#refused", "jwt.sub=alice")?;
    browser.wait_for("#reading", "refused ")?;
    let drawn = "return document.querySelector('#plot path.refused').getAttribute('d').length";
    wait::until_true("refusals in the chart", LIMIT, || {
        Ok(browser.run(drawn, vec![])?.as_u64().is_some_and(|length| length > 10))
    })?;
    assert!(!browser.text("#fullest")?.contains("everybody"), "another policy counts that");
    browser.click("#from-6h")?;
    browser.wait_for("#known", "This store has counted since ")?;
    browser.click("#policy-dial")?;
    let chosen = "return document.querySelector('#dial-policy').value";
    assert_eq!(browser.run(chosen, vec![])?, "per-caller");
    traffic.end()
}

#[test]
fn slots_of_a_concurrency_limit_are_shown_with_who_holds_and_who_waits() -> Result<()> {
    let mut document = per_caller(2);
    document["policies"] = json!([{"name": "at-once", "partition_by": ["caller"], "in_flight": 1,
        "max_wait": "5s"}]);
    let rig = Rig::start(document)?;
    let held = of("alice")?.header(DELAY_HEADER, "4000");
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(rig.envoy.port())?;
        client.start(&held)?;
        clients.push(client);
    }
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#policies", "1 at once")?;
    browser.wait_for("#fullest", "1 waiting")?;
    browser.wait_for("#fullest", "longest since ")?;
    page::open_at(&browser, rig.store.admin_port(), "policy=at-once")?;
    browser.wait_for("#policy-says", "1 at once")?;
    browser.wait_for("#fullest", "longest since ")?;
    page::open_at(&browser, rig.store.admin_port(), "party=jwt.sub%3Dalice")?;
    browser.wait_for("#party", " holds 1, the longest for ")?;
    let resets = "return document.querySelectorAll('#party button[aria-label^=Reset]').length";
    assert_eq!(browser.run(resets, vec![])?, 0, "the store refuses to reset slots");
    for mut client in clients {
        assert_eq!(client.finish()?.status, 200);
    }
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#fullest", "0 of 1")?;
    wait::until_true("no request to run", LIMIT, || {
        Ok(!browser.text("#fullest")?.contains("longest since"))
    })
}

#[test]
fn values_of_an_hour_are_read_by_pointer_and_by_keys() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    page::make_up(&browser, &page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    let mut admitted = vec![0; 358];
    admitted.extend([120, 600]);
    let minutes = json!({"at_ms": 0, "end_ms": 0, "admitted": admitted, "refused": vec![0; 360],
        "let_through": vec![60; 360]});
    browser.run_before_pages(&format!(
        "window.made.lists['/v1/requests'] = {minutes};
         window.made.lists['/v1/top'] = {{fullest: [], refused: [], would_refuse: []}};"
    ))?;
    page::open_at(&browser, store.admin_port(), "policy=per-caller&from=1h")?;
    browser.wait_for("#reading", "for 1 min: admitted 10.0 /s, would be refused 1.0 /s")?;
    browser.wait_for("#y-axis", "20.0 /s")?;
    assert_eq!(browser.text("#known")?, "", "the whole hour is known");
    browser.run("document.querySelector('#moment').focus()", vec![])?;
    browser.press(LEFT)?;
    browser.wait_for("#reading", "for 1 min: admitted 2.0 /s, would be refused 1.0 /s")?;
    let said = "return document.querySelector('#moment').getAttribute('aria-valuetext')";
    assert_eq!(browser.run(said, vec![])?, json!(browser.text("#reading")?));
    let point = "const at = document.querySelector('#plot'); const box = at.getBoundingClientRect();
        at.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 1, clientY: box.top + 9}))";
    browser.run(point, vec![])?;
    browser.wait_for("#reading", "for 1 min: admitted 0 /s, would be refused 1.0 /s")?;
    browser.click("#from-6h")?;
    browser.wait_for("#reading", "for 5 min: ")?;
    assert_eq!(page::query(&browser)?, "policy=per-caller&from=6h");
    Ok(())
}

#[test]
fn what_the_store_did_not_count_is_not_shown_as_zero() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    page::make_up(&browser, &page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    let minutes = json!({"at_ms": 0, "end_ms": 0, "admitted": [300, 600, 600, 600, 600, 600, 600],
        "refused": [0, 0, 0, 0, 0, 0, 0], "let_through": [0, 0, 0, 0, 0, 0, 0]});
    browser.run_before_pages(&format!("window.made.lists['/v1/requests'] = {minutes}"))?;
    page::open_at(&browser, store.admin_port(), "policy=per-caller&from=6h")?;
    browser.wait_for("#reading", "for 5 min: admitted 10.0 /s")?;
    browser.run("document.querySelector('#moment').focus()", vec![])?;
    browser.press(LEFT)?;
    browser.wait_for("#reading", "for 5 min: admitted 7.5 /s")?;
    browser.press(LEFT)?;
    browser.wait_for("#reading", "for 5 min: not known")?;
    browser.wait_for("#known", "This store has counted since ")?;
    Ok(())
}

#[test]
fn overrides_of_a_policy_are_found_behind_the_first_hundred_of_the_domain() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    let many: Vec<Value> = (0..101)
        .map(|n| json!({"domain": "shop", "policy": "search", "partition": format!("jwt.sub={n}"), "allow": "blocked", "by": "ada", "at_ms": 3}))
        .collect();
    page::make_up(&browser, &page::full_picture("x"), &json!(many), &json!([]))?;
    let own = page::one_override("jwt.sub=alice");
    browser.run_before_pages(&format!(
        "const other = window.fetch; window.fetch = (path, options) =>
            path.startsWith('/v1/overrides?') && path.includes('policy=per-caller') ? Promise.resolve(Response.json({own})) : other(path, options)"
    ))?;
    page::open_at(&browser, store.admin_port(), "policy=per-caller")?;
    browser.wait_for("#overrides", "jwt.sub=alice")?;
    page::open_at(&browser, store.admin_port(), "")?;
    browser.wait_for("#more-overrides", "Only the first 100 are listed")?;
    Ok(())
}

#[test]
fn crafted_link_does_not_break_the_page() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    page::make_up(&browser, &page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    for from in ["constructor", "__proto__", "7d", ""] {
        page::open_at(&browser, store.admin_port(), &format!("policy=per-caller&from={from}"))?;
        browser.wait_for("#reading", "for 5 s: admitted 3.0 /s")?;
        assert_eq!(browser.text("#connection")?, page::LIVE, "{from}");
    }
    Ok(())
}
