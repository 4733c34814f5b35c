//! The page without a mouse.

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use serde_json::{Value, json};

const TAB: &str = "\u{e004}";
const ESCAPE: &str = "\u{e00c}";
const ENTER: &str = "\u{e007}";
const FOCUSED: &str = "const at = document.activeElement; at.dataset.reached = ''; \
    return at.id || at.getAttribute('aria-label') || at.textContent.trim().slice(0, 40)";

fn focused(browser: &Browser) -> Result<Value> {
    browser.run(FOCUSED, vec![])
}

#[test]
fn tab_key_reaches_every_control_and_shows_the_focus() -> Result<()> {
    let (_store, browser) = page::open_made_up(
        &page::full_picture("jwt.sub=alice"),
        &page::one_override("jwt.sub=bob"),
        &page::one_change("a change"),
    )?;
    browser.wait_for("#overrides", "jwt.sub=bob")?;
    browser.press(TAB)?;
    assert_eq!(focused(&browser)?, "Skip to the content", "the first stop");
    let outline = "const at = getComputedStyle(document.activeElement); return `${at.outlineStyle} ${at.outlineWidth}`";
    for _ in 0..40 {
        assert_eq!(browser.run(outline, vec![])?, "solid 2px", "at {}", focused(&browser)?);
        browser.press(TAB)?;
        if focused(&browser)? == json!("Skip to the content")
            || browser.run("return document.activeElement === document.body", vec![])?
                == json!(true)
        {
            break;
        }
    }
    let missed = "return [...document.querySelectorAll('button, input, select, a')].filter((at) => at.checkVisibility() && !('reached' in at.dataset)).map((at) => at.outerHTML.slice(0, 120))";
    assert_eq!(browser.run(missed, vec![])?, json!([]));
    Ok(())
}

#[test]
fn dialogs_open_and_close_with_the_keyboard() -> Result<()> {
    let (_store, browser) =
        page::open_made_up(&page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    let open = "return [...document.querySelectorAll('dialog')].filter((at) => at.open).map((at) => at.id)";
    browser.run("document.querySelector('#new-dial').focus()", vec![])?;
    browser.press(ENTER)?;
    assert_eq!(browser.run(open, vec![])?, json!(["dial"]));
    browser.fill("#dial-quota", "9")?;
    browser.fill("#dial-by", "ada")?;
    browser.press(ENTER)?;
    assert_eq!(browser.run(open, vec![])?, json!(["dial", "confirm"]));
    assert_eq!(focused(&browser)?, "confirm-do");
    browser.press(ESCAPE)?;
    assert_eq!(browser.run(open, vec![])?, json!(["dial"]), "one at a time");
    browser.press(ESCAPE)?;
    assert_eq!(browser.run(open, vec![])?, json!([]));
    assert_eq!(focused(&browser)?, "new-dial", "the focus returns to the button");
    Ok(())
}

#[test]
fn rows_keep_their_order_while_one_has_the_focus() -> Result<()> {
    let mut picture = page::full_picture("jwt.sub=alice");
    let row = |name: &str, requests: u64| json!({"domain": "shop", "policy": "per-caller", "partition": name, "requests": requests, "error": 0});
    picture["refused"] = page::rows(&[row("ip=192.0.2.1", 9), row("ip=192.0.2.2", 8)]);
    let (_store, browser) = page::open_made_up(&picture, &json!([]), &json!([]))?;
    let focus = "document.querySelectorAll('#refused button')[1].focus(); window.held = document.activeElement";
    browser.run(focus, vec![])?;
    browser.run("made.picture.refused['shop per-caller ip=192.0.2.2'].requests = 77", vec![])?;
    browser.wait_for("#refused", "77")?;
    let order =
        "return [...document.querySelectorAll('#refused .theirs')].map((at) => at.textContent)";
    assert_eq!(browser.run(order, vec![])?, json!(["ip=192.0.2.1", "ip=192.0.2.2"]));
    assert_eq!(browser.run("return document.activeElement === window.held", vec![])?, true);
    browser.run("document.activeElement.blur()", vec![])?;
    browser.wait_for("#refused tr:first-child", "ip=192.0.2.2")?;
    Ok(())
}
