//! What the page says about a dial: who shares its quota, what it replaces, and when each dial
//! ends.

use anyhow::{Context as _, Result};
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::{Value, json};

/// The page of a store whose policy `per-caller` has these `partition_by` and `tiers`.
fn opened(partition_by: Value, tiers: bool) -> Result<(StoreProcess, Browser)> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    let mut made = page::full_snapshot("jwt.sub=alice");
    let policy = made.pointer_mut("/boards/0/policies/0").and_then(Value::as_object_mut);
    let policy = policy.context("the snapshot has a policy")?;
    policy.insert("partition_by".to_owned(), partition_by);
    policy.insert("tiers".to_owned(), json!(tiers));
    page::make_up(&browser, &made, &json!([]), &json!([]))?;
    page::open(&browser, store.admin_port())?;
    Ok((store, browser))
}

fn entry(name: &str) -> Value {
    json!({"name": name, "forms": [name]})
}

#[test]
fn quota_applies_to_each_partition_and_replaces_tiers() -> Result<()> {
    for (partition_by, tiers, whom) in [
        (json!([entry("caller"), entry("method")]), true, "each caller and method"),
        (json!([]), false, "everybody together"),
        (Value::Null, false, "each partition"),
    ] {
        let (_store, browser) = opened(partition_by, tiers)?;
        let words =
            page::review_dial(&browser, "per-caller", &[("quota", "1,000"), ("for", "1h")])?;
        let promised = format!(
            "Policy per-caller of domain shop will grant {whom} at most 1,000 per 1 min, counted over all proxies"
        );
        assert!(words.starts_with(&promised), "{words}");
        assert_eq!(words.contains("replaces the tiers"), tiers, "{words}");
    }
    Ok(())
}

#[test]
fn each_dial_of_a_policy_is_shown_with_its_own_end() -> Result<()> {
    let (_store, browser) = opened(Value::Null, false)?;
    let row = browser.wait_for("#policies", "configured: 5 per 1 min, enforce; ")?;
    assert!(
        row.contains("; its own dial reverts in 59 min; the dial of all policies stays until"),
        "{row}"
    );
    Ok(())
}

#[test]
fn quota_with_a_decimal_point_is_rejected() -> Result<()> {
    let (_store, browser) = opened(Value::Null, false)?;
    for wrong in ["1,5", "1.5", "10,00", "1,000_000"] {
        browser.click("button[aria-label='Dial per-caller']")?;
        browser.fill("#dial-quota", wrong)?;
        browser.fill("#dial-by", "ada")?;
        browser.click("#dial-form button.main")?;
        browser.wait_for("#dial-error", "Write a whole number")?;
        browser.click("#dial-form [data-close]")?;
    }
    Ok(())
}
