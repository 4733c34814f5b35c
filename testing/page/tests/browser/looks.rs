//! Light and dark, wide and narrow: everything is readable, and labelled.

use anyhow::{Context, Result};
use quotagate_page::browser::{Browser, Scheme};
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::{Value, json};

/// Returns the number of shown texts, and those with too little contrast to their background (WCAG
/// AA).
const FAINT: &str = "
    const numbers = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
    const light = ([r, g, b]) => {
      const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const below = (node) => {
      for (let at = node; at; at = at.parentElement) {
        const colour = numbers(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let texts = 0;
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest('script, style')) continue;
      texts += 1;
      const [a, b] = [light(numbers(getComputedStyle(node).color)), light(below(node))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${walker.currentNode.textContent.trim().slice(0, 40)}`);
    }
    return [texts, found]";

/// Controls without an accessible name, and other faults for assistive technology.
const UNLABELLED: &str = "
    const found = [];
    for (const field of document.querySelectorAll('input, select, textarea')) {
      const named = [...(field.labels ?? [])].some((label) => label.textContent.trim()) || field.getAttribute('aria-label');
      if (!named) found.push(`no label: ${field.id}`);
    }
    for (const button of document.querySelectorAll('button')) if (!(button.getAttribute('aria-label') ?? button.textContent).trim()) found.push('a button without a name');
    for (const dialog of document.querySelectorAll('dialog')) if (!document.getElementById(dialog.getAttribute('aria-labelledby'))) found.push(`no name: ${dialog.id}`);
    for (const picture of document.querySelectorAll('svg')) if (!picture.getAttribute('aria-label')) found.push('a picture without words');
    for (const section of document.querySelectorAll('section, table')) if (!document.getElementById(section.getAttribute('aria-labelledby'))?.textContent) found.push('a section without a name');
    for (const head of document.querySelectorAll('th')) if (!head.getAttribute('scope') || !head.textContent.trim()) found.push(`a header without a scope: ${head.textContent}`);
    for (const node of document.querySelectorAll('[aria-describedby], [for]')) {
      const id = node.getAttribute('aria-describedby') ?? node.getAttribute('for');
      if (!document.getElementById(id)) found.push(`nothing is ${id}`);
    }
    const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
    if (new Set(ids).size !== ids.length) found.push('an id comes twice');
    for (const live of document.querySelectorAll('[role=status], [role=alert]')) if (live.querySelector('[data-ends], .rate')) found.push('a number that changes each second is announced');
    if (document.querySelectorAll('h1').length !== 1 || !document.querySelector('main, header') || document.documentElement.lang !== 'en') found.push('landmarks');
    return found";

fn shown() -> Result<(StoreProcess, Browser)> {
    let name = "jwt.iss=https%3A//issuer.example.org/realms/main,jwt.sub=alice";
    let (store, browser) = page::open_made_up(
        &page::full_picture(name),
        &page::one_override(name),
        &page::one_change("a change"),
    )?;
    browser.wait_for("#history", "a change")?;
    browser.wait_for("#documents", "silent since then")?;
    Ok((store, browser))
}

fn faint(browser: &Browser, least: u64) -> Result<Value> {
    let found = browser.run(FAINT, vec![])?;
    let texts = found.get(0).and_then(Value::as_u64).context("a count")?;
    assert!(texts >= least, "only {texts} texts were checked");
    found.get(1).cloned().context("a list")
}

#[test]
fn every_text_stands_out_in_light_and_dark() -> Result<()> {
    let (_store, browser) = shown()?;
    for scheme in [Scheme::Light, Scheme::Dark] {
        browser.screen(1280, 900, scheme)?;
        assert_eq!(faint(&browser, 60)?, json!([]), "{scheme:?}");
        for open in ["#new-dial", "#refused button"] {
            browser.click(open)?;
            browser.click("dialog[open] button.main")?;
            browser.wait_for("dialog[open] [role=alert]", ".")?;
            assert_eq!(faint(&browser, 70)?, json!([]), "{scheme:?} {open}");
            browser.click("dialog[open] [data-close]")?;
        }
    }
    let ground = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.run(ground, vec![])?, "rgb(17, 20, 23)", "dark is dark");
    Ok(())
}

#[test]
fn no_screen_scrolls_sideways() -> Result<()> {
    let (store, browser) = shown()?;
    let usage = json!({"found": [{"domain": "shop", "policy": "per-caller", "partition": "jwt.sub=alice,".repeat(9),
        "used": 1_000_000, "quota": 1_000_000, "quota_from": "unknown", "window_s": 60, "reset_ms": 42_000,
        "mode": "enforce"}]});
    browser.run_before_pages(&format!("window.made.lists['/v1/usage'] = {usage}"))?;
    let sizes = [320, 390, 600, 1280].map(|width| {
        ["", "policy=per-caller", "party=jwt.sub%3Dalice"].map(|query| (width, query))
    });
    for (width, query) in sizes.into_iter().flatten() {
        browser.screen(width, 800, Scheme::Light)?;
        page::open_at(&browser, store.admin_port(), query)?;
        let wide = "
            const over = [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility() && !node.closest('.unseen, thead, .skip') && node.getBoundingClientRect().right > innerWidth + 1);
            return [document.documentElement.scrollWidth - innerWidth, over.map((node) => node.outerHTML.slice(0, 80))]";
        assert_eq!(browser.run(wide, vec![])?, json!([0, []]), "{width} px {query}");
        browser.click("#new-override")?;
        assert_eq!(browser.run(wide, vec![])?, json!([0, []]), "{width} px {query}, with a dialog");
    }
    Ok(())
}

#[test]
fn every_control_has_an_accessible_name() -> Result<()> {
    let (_store, browser) = shown()?;
    assert_eq!(browser.run(UNLABELLED, vec![])?, json!([]));
    let chart = "return document.querySelector('svg').getAttribute('aria-label')";
    browser.wait_for(
        "#policies",
        "Requests in the last 5 minutes: 40 could not be counted because the store failed; 2 had no identity.",
    )?;
    let words = "Last 5 minutes, per second: admitted up to 3.0, would be refused up to 1.0.";
    assert_eq!(browser.run(chart, vec![])?, words);
    Ok(())
}

#[test]
fn empty_page_says_what_to_do() -> Result<()> {
    let mut empty = page::full_picture("x");
    for list in ["faults", "warnings", "documents", "mixed"] {
        empty[list] = json!([]);
    }
    for rows in ["domains", "fullest", "refused", "would_refuse"] {
        empty[rows] = json!({});
    }
    let (_store, browser) = page::open_made_up(&empty, &json!([]), &json!([]))?;
    browser.wait_for("#no-policies", "No filter has reported yet")?;
    for (id, words) in [
        ("#no-fullest", "No partition has used"),
        ("#no-refused", "No partition was refused"),
        ("#no-dials", "No dial is set"),
        ("#no-overrides", "No partition has an override"),
        ("#no-history", "Nothing has been changed yet"),
        ("#health", "Store ready"),
    ] {
        browser.wait_for(id, words)?;
    }
    assert_eq!(browser.text("table")?, "", "a table without rows is not shown");
    Ok(())
}
