//! The rules of axe-core, on every view, with and without dialogs.

use std::fs;

use anyhow::{Context, Result};
use quotagate_page::browser::{Browser, Scheme};
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use quotagate_support::tools;
use serde_json::{Value, json};

const RUN: &str = "
    const { violations, passes } = await axe.run(document, { resultTypes: ['violations'] });
    return [passes.length, violations.map((of) => [of.id, of.help, of.nodes.map((node) => node.html.slice(0, 120))])]";

/// Checks what the browser shows.
fn check(browser: &Browser, axe: &str, what: &str) -> Result<()> {
    browser.run(axe, vec![])?;
    let found = browser.run_async(RUN, vec![])?;
    let passed = found.get(0).and_then(Value::as_u64).with_context(|| format!("{found}"))?;
    assert!(passed > 15, "{what}: only {passed} rules applied");
    assert_eq!(found.get(1), Some(&json!([])), "{what}");
    Ok(())
}

#[test]
fn axe_finds_nothing_on_any_view() -> Result<()> {
    let axe = fs::read_to_string(tools::AXE.installed()?.join("axe.min.js"))?;
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    let name = "jwt.iss=https%3A//issuer.example.org/realms/main,jwt.sub=alice";
    let mut picture = page::full_picture(name);
    picture["environment"] = json!("production");
    page::make_up(&browser, &picture, &page::one_override(name), &page::one_change("a change"))?;
    let usage = json!({"domain": "shop", "policy": "per-caller", "partition": name, "used": 8, "quota": 8,
        "quota_from": "override", "window_s": 60, "reset_ms": 42_000, "mode": "enforce", "refused": 7,
        "refused_for_ms": 9000});
    let lists = json!({"/v1/usage": {"found": [usage]}, "/v1/top": {"fullest": [usage], "refused": [], "would_refuse": []},
        "/v1/requests": {"at_ms": 0, "end_ms": 0, "admitted": [1, 2], "refused": [0, 1], "let_through": [0, 0]}});
    browser.run_before_pages(&format!("Object.assign(window.made.lists, {lists})"))?;
    // Without this, axe-core could not run its own code.
    browser.devtools("Page.setBypassCSP", json!({"enabled": true}))?;
    let party = "party=jwt.sub%3Dalice";
    for (query, shown) in
        [("", "#documents td"), ("policy=per-caller&from=1h", "#reading"), (party, "#party-says")]
    {
        for (width, scheme) in
            [(1280, Scheme::Light), (1280, Scheme::Dark), (390, Scheme::Light), (390, Scheme::Dark)]
        {
            browser.screen(width, 900, scheme)?;
            page::open_at(&browser, store.admin_port(), query)?;
            browser.wait_for(shown, "e")?;
            browser.wait_for("#overrides", "nothing: blocked")?;
            check(&browser, &axe, &format!("{query} {width} {scheme:?}"))?;
        }
    }
    for (query, open) in [
        ("", "#new-dial"),
        ("", "#new-override"),
        (party, "button[aria-label^='Raise']"),
        (party, "button[aria-label^='Reset']"),
    ] {
        page::open_at(&browser, store.admin_port(), query)?;
        browser.click(open)?;
        check(&browser, &axe, &format!("{query} {open}"))?;
    }
    Ok(())
}
