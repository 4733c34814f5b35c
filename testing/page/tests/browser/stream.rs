//! The page shows whether its data is live.

use anyhow::Result;
use quotagate_page::page;
use serde_json::json;

#[test]
fn stalled_stream_is_noticed_and_resumed() -> Result<()> {
    let (_store, browser) =
        page::open_made_up(&page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    browser.wait_for("#faults", "At fault: Redis is unreachable")?;
    browser.wait_for("#faults", "Warning: maxmemory-policy is not noeviction")?;
    browser.wait_for("#faults", "At fault: filters refuse the policy document of shop")?;
    browser.wait_for("#health", "Store at fault")?;
    assert_eq!(browser.run("return document.title", vec![])?, "(1 at fault) quotagate");
    browser.run("made.silent = true", vec![])?;
    browser.wait_for("#connection", "Reconnecting")?;
    browser.wait_for(
        "#trouble",
        "Not live: the store sent nothing for 5 s. The page shows the state of ",
    )?;
    browser.wait_for("#as-of", "ago")?;
    browser.fill("#find", "per-caller")?;
    assert_eq!(browser.text("#connection")?, "Reconnecting", "who types brings no news");
    browser.wait_for("#as-of", "ago")?;
    browser.run("made.silent = false", vec![])?;
    browser.wait_for("#connection", page::LIVE)?;
    assert_eq!(browser.text("#trouble")?, "");
    Ok(())
}

#[test]
fn expired_entries_disappear() -> Result<()> {
    let mut overrides = page::one_override("jwt.sub=bob");
    overrides[0]["remaining_ms"] = json!(3000);
    let (_store, browser) =
        page::open_made_up(&page::full_picture("jwt.sub=alice"), &overrides, &json!([]))?;
    browser.wait_for("#overrides", "jwt.sub=bob")?;
    // The store behind the page has no such domain, so no update replaces the list.
    browser.run("delete made.lists['/v1/overrides']", vec![])?;
    browser.wait_for("#no-overrides", "No partition has an override")?;
    browser.wait_for("#dials", "59 min")?;
    browser.wait_for("#dials", "not by itself")?;
    Ok(())
}
