//! Finding one policy or party among many, and sharing what was found.

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::{Value, json};

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
/// The names of the policies that are listed.
const NAMES: &str =
    "return [...document.querySelectorAll('#policies h3')].map((at) => at.textContent)";

/// Notes when the first policy stands on the page, in milliseconds since it was opened, without
/// what the made-up picture took itself.
const WATCH: &str = "addEventListener('DOMContentLoaded', () => {
    const stands = () => document.querySelector('#policies .policy b') !== null;
    const stood = (now) => { window.stood = now - made.own; };
    const note = () => requestAnimationFrame(() => requestAnimationFrame(stood));
    if (stands()) return note();
    new MutationObserver((_, observer) => {
      if (!stands()) return;
      observer.disconnect();
      note();
    }).observe(document.querySelector('#policies'), { childList: true });
  });";

/// The page of a store with a thousand policies of 64 domains.
fn thousand() -> Result<(StoreProcess, Browser)> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    page::make_up(&browser, &page::large_picture(64, 1000), &json!([]), &json!([]))?;
    browser.run_before_pages(WATCH)?;
    page::open(&browser, store.admin_port())?;
    Ok((store, browser))
}

fn first(browser: &Browser) -> Result<Value> {
    Ok(browser.run(NAMES, vec![])?.get(0).cloned().unwrap_or_default())
}

#[test]
fn the_most_refused_of_a_thousand_policies_comes_first() -> Result<()> {
    let (_store, browser) = thousand()?;
    assert_eq!(first(&browser)?, "policy-999 of shop-62");
    browser.wait_for("#policies-shown", "50 of 1,000 policies")?;
    browser.click("#more-policies")?;
    browser.wait_for("#policies-shown", "100 of 1,000 policies")?;
    page::set(&browser, "#sort", "name")?;
    assert_eq!(first(&browser)?, "policy-0 of shop-0");
    page::set(&browser, "#sort", "busy")?;
    assert_eq!(first(&browser)?, "policy-999 of shop-62");
    // Not judged: a slow machine is no fault of the page.
    let figures = "return [window.stood, performance.memory.usedJSHeapSize / 1e6]";
    let figures = browser.run(figures, vec![])?;
    eprintln!("the first screen stood after {} ms, the heap has {} MB", figures[0], figures[1]);
    Ok(())
}

#[test]
fn slash_and_a_part_of_a_name_find_a_policy_without_the_mouse() -> Result<()> {
    let (_store, browser) = thousand()?;
    browser.press("/")?;
    assert_eq!(browser.run("return document.activeElement.id", vec![])?, "find");
    browser.press("SHOP-7 119")?;
    browser.wait_for("#policies-shown", "1 of 1 policies that match, of 1,000")?;
    assert_eq!(browser.run(NAMES, vec![])?, json!(["policy-119 of shop-7"]));
    browser.press(ENTER)?;
    browser.wait_for("#h-policy", "policy-119 of shop-7")?;
    Ok(())
}

#[test]
fn link_shows_the_same_to_another_person() -> Result<()> {
    let (store, browser) = thousand()?;
    browser.click("#policies h3 a")?;
    browser.wait_for("#h-policy", "policy-999 of shop-62")?;
    assert_eq!(browser.run("return document.activeElement.id", vec![])?, "h-policy");
    browser.click("#from-1h")?;
    let shared = page::query(&browser)?;
    assert_eq!(shared, "domain=shop-62&policy=policy-999&from=1h");
    assert_eq!(
        browser.run("return document.title", vec![])?,
        "(1 at fault) policy-999 · quotagate"
    );
    browser.run("history.back()", vec![])?;
    browser.wait_for("#policies", "policy-999 of shop-62")?;
    assert_eq!(page::query(&browser)?, "");

    page::open_at(&browser, store.admin_port(), &shared)?;
    browser.wait_for("#h-policy", "policy-999 of shop-62")?;
    assert_eq!(browser.run("return document.querySelector('#from-1h').checked", vec![])?, true);
    assert_eq!(browser.text("#policies")?, "", "the overview is not shown");
    // A link to a domain shows its policies only.
    page::open_at(&browser, store.admin_port(), "domain=shop-3")?;
    browser.wait_for("#policies-shown", "16 of 16 policies that match, of 1,000")?;
    Ok(())
}

#[test]
fn policy_of_several_domains_is_chosen_and_an_unknown_one_is_named() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    let mut picture = page::large_picture(2, 4);
    let twice = picture["domains"]["shop-0"]["policies"]["policy-0"].clone();
    picture["domains"]["shop-1"]["policies"]["policy-0"] = twice;
    page::make_up(&browser, &picture, &json!([]), &json!([]))?;
    page::open_at(&browser, store.admin_port(), "policy=policy-0")?;
    browser.wait_for("#policy-trouble", "Several domains have a policy of this name.")?;
    browser.click("#policy-domains li:nth-child(2) a")?;
    browser.wait_for("#h-policy", "policy-0 of shop-1")?;
    for name in ["constructor", "__proto__"] {
        page::open_at(&browser, store.admin_port(), &format!("policy={name}&domain={name}"))?;
        browser.wait_for("#policy-trouble", &format!("No filter has reported a policy {name}"))?;
    }
    page::open_at(&browser, store.admin_port(), "policy=none&domain=shop-1")?;
    browser
        .wait_for("#policy-trouble", "No filter has reported a policy none of domain shop-1.")?;
    Ok(())
}

#[test]
fn words_that_fit_nothing_say_how_to_go_on_and_secrets_are_not_sent() -> Result<()> {
    let (_store, browser) = thousand()?;
    for (words, says) in [
        ("nothing-like-this", "write its label, too: jwt.sub=alice"),
        ("olicy-99", "11 policies have this in their names: they are below."),
        ("header.x-api-key=k3y", "The value of header.x-api-key may be a secret"),
    ] {
        browser.fill("#find", words)?;
        browser.press(ENTER)?;
        browser.wait_for("#find-says", says)?;
    }
    assert_eq!(page::query(&browser)?, "");
    browser.press(ESCAPE)?;
    assert_eq!(browser.run("return document.querySelector('#find').value", vec![])?, "");
    browser.wait_for("#policies-shown", "50 of 1,000")?;
    Ok(())
}

#[test]
fn list_that_a_filter_empties_does_not_say_that_there_is_nothing() -> Result<()> {
    let (store, browser) = page::open_made_up(
        &page::full_picture("jwt.sub=alice"),
        &page::one_override("jwt.sub=bob"),
        &page::one_change("a change"),
    )?;
    browser.wait_for("#overrides", "jwt.sub=bob")?;
    browser.fill("#find", "no-such-name")?;
    for list in ["fullest", "refused", "dials", "overrides", "history"] {
        let words = "Nothing that is listed here fits what you look for.";
        browser.wait_for(&format!("#no-{list}"), words)?;
    }
    // The picture has the first ten of all domains. Those of one domain are asked for.
    let row = json!({"domain": "shop", "policy": "search", "partition": "ip=192.0.2.9", "requests": 1, "error": 0});
    let top = json!({"fullest": [], "refused": [row], "would_refuse": []});
    browser.run_before_pages(&format!("window.made.lists['/v1/top'] = {top}"))?;
    page::open_at(&browser, store.admin_port(), "domain=shop")?;
    browser.wait_for("#refused", "ip=192.0.2.9")?;
    Ok(())
}
