//! The view of one party: who refuses it, and what helps.

use anyhow::Result;
use quotagate_page::browser::{Browser, LIMIT};
use quotagate_page::page;
use quotagate_page::rig::Rig;
use quotagate_support::store::StoreProcess;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::fleet::{of, per_caller, until_refused};

const ENTER: &str = "\u{e007}";
const NAMES: [&str; 5] = ["by-second", "by-minute", "by-hour", "by-day", "by-year"];

/// Five policies that grant a caller one request.
fn five() -> Value {
    let mut document = per_caller(1);
    let policies = NAMES.map(
        |name| json!({"name": name, "partition_by": ["caller"], "quota": 1, "window": "366d"}),
    );
    if let Some(all) = document.get_mut("policies") {
        *all = json!(policies);
    }
    document
}

/// Finds alice, whom all of them refuse.
fn found(rig: &Rig) -> Result<Browser> {
    assert_eq!(rig.status(&of("alice")?)?, 200);
    until_refused(rig, "alice")?;
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#policies", "by-year")?;
    browser.press("/jwt.sub=alice")?;
    browser.press(ENTER)?;
    browser.wait_for("#party-says", "Refused now by ")?;
    Ok(browser)
}

/// Signs the open form, and agrees.
fn agree(browser: &Browser, words: &str) -> Result<()> {
    browser.fill("#override-by", "ada")?;
    browser.click("#override-form button.main")?;
    browser.wait_for("#confirm-words", words)?;
    page::agree(browser)?;
    browser.click("#outcome button")
}

#[test]
fn party_that_five_policies_refuse_is_found_in_one_step_and_raised() -> Result<()> {
    let rig = Rig::start(five())?;
    let browser = found(&rig)?;
    let says = browser.text("#party-says")?;
    assert!(NAMES.iter().all(|name| says.contains(name)), "{says}");
    assert_eq!(page::query(&browser)?, "party=jwt.sub%3Dalice");
    for name in NAMES {
        browser.click(&format!("button[aria-label='Raise jwt.sub=alice in {name}']"))?;
        let offered = "return ['policy', 'partition', 'quota', 'for'].map((name) => document.querySelector(`#override-${name}`).value)";
        assert_eq!(browser.run(offered, vec![])?, json!([name, "jwt.sub=alice", "2", "1h"]));
        agree(&browser, "will be admitted at most 2 per 366 d")?;
    }
    browser.wait_for("#party-says", "No policy refuses it now.")?;
    browser.wait_for("#party", "1 of 2 (override)")?;
    browser.wait_for("#overrides", "2 per 366 d")?;
    browser.wait_for("#history", "ada")?;
    wait::until_true("alice to be admitted", LIMIT, || Ok(rig.status(&of("alice")?)? == 200))
}

#[test]
fn counters_of_a_party_are_reset_after_a_confirmation() -> Result<()> {
    let rig = Rig::start(five())?;
    let browser = found(&rig)?;
    for name in NAMES {
        browser.click(&format!("button[aria-label='Reset jwt.sub=alice in {name}']"))?;
        browser.wait_for("#confirm-words", "gets the whole quota of policy ")?;
        browser.fill("#confirm-by", "ada")?;
        page::agree(&browser)?;
        browser.click("#outcome button")?;
    }
    browser.wait_for("#party-says", "No policy refuses it now.")?;
    wait::until_true("alice to be admitted", LIMIT, || Ok(rig.status(&of("alice")?)? == 200))
}

#[test]
fn party_is_blocked_in_one_policy_and_everywhere() -> Result<()> {
    let rig = Rig::start(per_caller(1000))?;
    assert_eq!(rig.status(&of("mallory")?)?, 200);
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    browser.click("#fullest a[title='jwt.sub=mallory']")?;
    browser.wait_for("#party-says", "No policy refuses it now.")?;
    browser.wait_for("#party", "Lets it pass.")?;
    browser.click("button[aria-label='Block jwt.sub=mallory in per-caller']")?;
    agree(&browser, "will be refused everything by policy per-caller")?;
    until_refused(&rig, "mallory")?;
    browser.wait_for("#party-says", "Refused now by per-caller.")?;
    browser.click("button[aria-label='Clear the override of jwt.sub=mallory in per-caller']")?;
    browser.wait_for("#confirm-words", "returns to what policy per-caller")?;
    page::agree(&browser)?;
    wait::until_true("admitted again", LIMIT, || Ok(rig.status(&of("mallory")?)? == 200))?;
    browser.click("#outcome button")?;

    browser.click("#party-acts [data-act=block]")?;
    agree(&browser, "will be refused everything by all policies of domain shop")?;
    until_refused(&rig, "mallory")?;
    browser.wait_for("#party", "The quota is an override of jwt.sub=mallory,* in all policies.")?;
    assert_eq!(rig.status(&of("alice")?)?, 200);
    Ok(())
}

#[test]
fn party_that_nothing_counts_is_said_to_be_unknown() -> Result<()> {
    let rig = Rig::start(per_caller(1000))?;
    assert_eq!(rig.status(&of("alice")?)?, 200);
    let browser = Browser::start()?;
    page::open_at(&browser, rig.store.admin_port(), "party=jwt.sub=nobody")?;
    browser.wait_for("#no-party", "No policy counts this partition now.")?;
    browser.wait_for("#no-overrides", "There is none of this party.")?;
    assert_eq!(browser.text("#party-trouble")?, "");
    Ok(())
}

/// The view of alice at a store that answers this about her.
fn answered(picture: &Value, usage: &Value) -> Result<(StoreProcess, Browser)> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    page::make_up(&browser, picture, &json!([]), &json!([]))?;
    browser.run_before_pages(&format!("window.made.lists['/v1/usage'] = {usage}"))?;
    page::open_at(&browser, store.admin_port(), "party=jwt.sub%3Dalice")?;
    browser.wait_for("#party-says", "efuse")?;
    Ok((store, browser))
}

/// A counter of alice.
fn counter(domain: &str, policy: &str, window_s: u64, quota: Value) -> Value {
    json!({"domain": domain, "policy": policy, "partition": "jwt.sub=alice", "used": window_s, "quota": quota,
        "quota_from": "reservation", "window_s": window_s, "reset_ms": 42_000, "mode": "enforce", "refused": 7,
        "refused_for_ms": 9000})
}

#[test]
fn counters_of_two_windows_of_a_policy_are_both_shown() -> Result<()> {
    let found = [60, 3600].map(|window_s| counter("shop", "per-caller", window_s, json!(99)));
    let (_store, browser) =
        answered(&page::full_picture("jwt.sub=alice"), &json!({"found": found}))?;
    let rows = "return [...document.querySelectorAll('#party tr')].map((row) => row.querySelector('td').innerText.trim())";
    for _ in 0..3 {
        let mut rows = serde_json::from_value::<Vec<String>>(browser.run(rows, vec![])?)?;
        rows.sort();
        assert_eq!(rows, ["3,600 of 99", "60 of 99"]);
        // Events of the stream update the rows.
        std::thread::sleep(std::time::Duration::from_millis(700));
    }
    browser.wait_for("#party", "per 1 min")?;
    browser.wait_for("#party", "per 1 h")?;
    browser.click("button[aria-label='Raise jwt.sub=alice in per-caller per 1 h']")
}

#[test]
fn party_without_a_limit_is_not_said_to_be_refused_now() -> Result<()> {
    let found = [counter("shop", "per-caller", 60, Value::Null)];
    let (_store, browser) =
        answered(&page::full_picture("jwt.sub=alice"), &json!({"found": found}))?;
    browser
        .wait_for("#party-says", "No policy refuses it now. Refused in the last five minutes")?;
    browser.wait_for("#party", "Refused it lately.")?;
    Ok(())
}

#[test]
fn proxy_that_is_silent_is_shown_and_slots_that_cannot_be_read() -> Result<()> {
    let proxy = |name: &str, held: u64, silent_ms: u64| json!({"proxy": name, "held": held, "longest_ms": 9_000, "ends_ms": 3_500, "silent_ms": silent_ms});
    let limit = |policy: &str, slots: Value| {
        json!({"domain": "shop", "policy": policy, "partition": "jwt.sub=alice", "used": 1, "quota": 4,
            "quota_from": "policy", "kind": "in_flight", "window_s": 0, "reset_ms": 0, "mode": "enforce",
            "slots": slots})
    };
    let found = [
        limit("at-once", json!({"proxies": [proxy("one", 1, 5_500), proxy("other", 0, 0)]})),
        limit("unread", json!({"proxies": [proxy("one", 1, 0)], "left_out": 1})),
    ];
    let (_store, browser) =
        answered(&page::full_picture("jwt.sub=alice"), &json!({"found": found}))?;
    browser.wait_for(
        "#party",
        "Proxy one holds 1, the longest for 9 s, and has been silent for 6 s; proxy other holds 0.",
    )?;
    browser.wait_for("#party-says", "Refused now by unread.")?;
    browser.wait_for("#party", "1+ of 4")?;
    browser
        .wait_for("#party", "1 worker cannot be shown, and no slot is granted while that is so.")?;
    Ok(())
}

#[test]
fn all_policies_are_those_of_one_domain_and_the_buttons_name_it() -> Result<()> {
    let found = ["shop-0", "shop-1"].map(|domain| counter(domain, "policy-0", 60, json!(9)));
    let (_store, browser) = answered(&page::large_picture(3, 6), &json!({"found": found}))?;
    let acts =
        "return [...document.querySelectorAll('#party-acts button')].map((at) => at.textContent)";
    let expected = [
        "Override in all policies of shop-0…",
        "Block in all policies of shop-0…",
        "Override in all policies of shop-1…",
        "Block in all policies of shop-1…",
    ];
    assert_eq!(browser.run(acts, vec![])?, json!(expected));
    browser.click("#party-acts button:nth-child(4)")?;
    let chosen = "return document.querySelector('#override-policy').value";
    assert_eq!(browser.run(chosen, vec![])?, "all policies of shop-1");
    Ok(())
}

#[test]
fn overrides_that_cover_a_party_are_listed_with_those_that_match_nothing() -> Result<()> {
    let entry = |policy: &str, partition: &str| json!({"domain": "shop", "policy": policy, "partition": partition, "allow": "blocked", "by": "ada", "at_ms": 3});
    let mut useless = entry("per-caller", "jwt.sub=alice,method=PATCH");
    if let Some(fields) = useless.as_object_mut() {
        fields.insert("unmatched".to_owned(), json!("the policy counts by the caller alone"));
    }
    let usage =
        json!({"found": [], "overrides": [entry("*", "jwt.sub=alice,*")], "unmatched": [useless]});
    let (_store, browser) = answered(&page::full_picture("jwt.sub=alice"), &usage)?;
    browser.wait_for("#overrides", "jwt.sub=alice,*")?;
    browser.wait_for(
        "#overrides",
        "No request can match it: the policy counts by the caller alone.",
    )?;
    Ok(())
}
