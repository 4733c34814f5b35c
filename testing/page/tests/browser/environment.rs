//! The name of the store: in title, colour and every confirmation.

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::json;

#[test]
fn environment_is_named_in_title_colour_and_confirmation() -> Result<()> {
    let store = StoreProcess::start("memory:", &["--environment", "production"])?;
    let browser = Browser::start()?;
    page::open(&browser, store.admin_port())?;
    browser.wait_for("#environment", "production")?;
    assert_eq!(browser.run("return document.title", vec![])?, "production · quotagate");
    assert_eq!(page::query(&browser)?, "environment=production", "a link has it");
    let edge = "return getComputedStyle(document.querySelector('header')).borderTopColor";
    assert_eq!(browser.run(edge, vec![])?, "rgb(179, 38, 30)");

    let mut picture = page::full_picture("jwt.sub=alice");
    picture["environment"] = json!("production");
    page::make_up(&browser, &picture, &json!([]), &json!([]))?;
    page::open_at(&browser, store.admin_port(), "environment=production")?;
    assert_eq!(browser.text("#elsewhere")?, "");
    page::review_dial(&browser, "per-caller", &[("mode", "off")])?;
    browser.wait_for("#confirm-title", "Set this dial in production?")?;
    browser.wait_for("#confirm-do", "Set the dial in production")?;
    Ok(())
}

#[test]
fn link_of_another_environment_is_noticed() -> Result<()> {
    let store = StoreProcess::start("memory:", &["--environment", "staging"])?;
    let browser = Browser::start()?;
    page::open_at(&browser, store.admin_port(), "policy=per-caller&environment=production")?;
    browser.wait_for(
        "#elsewhere",
        "The link that you opened is for production. This store is staging.",
    )?;
    Ok(())
}
