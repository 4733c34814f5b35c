//! What the page says about a dial: who shares its quota, what it replaces, and when each dial
//! ends.

use anyhow::{Context as _, Result};
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::{Value, json};

/// The page of a store whose policy `per-caller` has these `partition_by` and `tiers`.
fn opened(partition_by: Value, tiers: bool) -> Result<(StoreProcess, Browser)> {
    changed(|made| {
        set(made, "/domains/shop/policies/per-caller", "partition_by", partition_by)?;
        set(made, "/domains/shop/policies/per-caller", "tiers", json!(tiers))
    })
}

/// Sets a field of an object in what the store sends.
fn set(made: &mut Value, object: &str, field: &str, value: Value) -> Result<()> {
    let object = made.pointer_mut(object).and_then(Value::as_object_mut);
    object.context("the picture has it")?.insert(field.to_owned(), value);
    Ok(())
}

/// The page of a store that sends a changed picture.
fn changed(change: impl FnOnce(&mut Value) -> Result<()>) -> Result<(StoreProcess, Browser)> {
    let mut made = page::full_picture("jwt.sub=alice");
    change(&mut made)?;
    let (store, browser) = page::open_made_up(&made, &json!([]), &json!([]))?;
    Ok((store, browser))
}

#[test]
fn windows_have_names_and_debt_is_shown_as_debt() -> Result<()> {
    for (kind, name) in [
        (json!("sliding"), "1 min sliding"),
        (json!({"calendar": {"unit": "day", "time_zone": "Europe/Berlin"}}), "day Europe/Berlin"),
    ] {
        let (_store, browser) = changed(|made| {
            set(made, "/domains/shop/policies/per-caller", "kind", kind.clone())?;
            for (field, value) in [("used", 130), ("quota", 100), ("debt", 30)] {
                set(made, "/fullest/shop per-caller jwt.sub=alice", field, json!(value))?;
            }
            Ok(())
        })?;
        browser.wait_for("#policies", &format!(" per {name}"))?;
        browser.wait_for("#fullest", "130 of 100")?;
        browser.wait_for("#fullest", ", 30 in debt")?;
    }
    Ok(())
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
        row.contains("; its own dial reverts in 59 min ")
            && row.contains(" s; the dial of all policies stays until"),
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
