//! Which proxies have the published document: what comes first, and what is left out.

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use serde_json::{Map, Value, json};

/// Pages that are opened from now on get this reply for each domain, and count how often they ask.
fn answers(browser: &Browser, documents: &Value) -> Result<()> {
    browser.run_before_pages(&format!(
        "{{ window.made.lists['/v1/documents'] = {documents}; window.asked = 0;
         const made = window.fetch;
         window.fetch = (path, options) => {{ if (path.startsWith('/v1/documents')) window.asked += 1; return made(path, options); }}; }}"
    ))
}

#[test]
fn proxies_and_domains_with_faults_come_first_and_the_rest_is_counted() -> Result<()> {
    let mut picture = page::full_picture("ann");
    let domain = picture["domains"]["shop"].take();
    let domains = (1..=6).map(|n| {
        let mut domain = domain.clone();
        if n == 6 {
            domain["documents"]["silent"] = json!(1);
        }
        (format!("d{n}"), domain)
    });
    picture["domains"] = Value::Object(domains.collect::<Map<_, _>>());
    let mut documents = page::published_documents("ann");
    let proxies = (0..22).map(|n| {
        json!({"proxy": format!("{n:016x}"), "digest": "0123456789ab", "number": 7, "live": true,
            "state": "published", "workers": [{"worker": 0, "since_ms": 1}]})
    });
    let refusing = documents["proxies"][1].clone();
    documents["proxies"] = proxies.chain([refusing]).collect();
    let (store, browser) = page::open_made_up(&picture, &json!([]), &json!([]))?;
    answers(&browser, &documents)?;
    page::open(&browser, store.admin_port())?;
    browser.wait_for("#more-documents", "100 more: see ")?;
    browser.wait_for("#more-documents", "Only 5 of 6 domains are shown.")?;
    browser.wait_for("#documents-says", "d6: number 7 (0123456789ab), published at ")?;
    let shown = browser.run(
        "return [[...document.querySelectorAll('#documents tr')].map((row) => row.lastChild.textContent),
            [...document.querySelectorAll('#documents-says p')].map((of) => of.textContent.slice(0, 2)), window.asked]",
        vec![],
    )?;
    let mut states = ["refuses number 7", "silent since then"].repeat(5);
    states.extend(["published"; 10]);
    assert_eq!(shown, json!([states, ["d6", "d1", "d2", "d3", "d4"], 5]));
    browser.fill("#find", "nothing of that name")?;
    browser.wait_for("#no-documents", "Nothing that is listed here fits what you look for.")?;

    page::open_at(&browser, store.admin_port(), "policy=per-caller&domain=d6")?;
    browser.wait_for("#policy-documents", "0123456789ab at 1 of 3 proxies")?;
    let asked = "return [window.asked, document.getElementById('documents-section').hidden]";
    assert_eq!(browser.run(asked, vec![])?, json!([0, true]));
    Ok(())
}

#[test]
fn sentence_says_for_whom_and_until_when_a_document_is_published() -> Result<()> {
    let (store, browser) = page::open_made_up(&page::full_picture("ann"), &json!([]), &json!([]))?;
    for (field, value, expected) in [
        ("note", json!("a try"), vec![" by ann: a try; 1 of 3 live proxies have it."]),
        (
            "percent",
            json!(10),
            vec![" for 10 % of the proxies; 1 of 3", " what is meant for them."],
        ),
        ("until_ms", json!(60_000), vec![" by ann until 1 Jan 1970, "]),
        ("digest", json!(""), vec!["shop: number 7, withdrawn at ", " have their own."]),
        (
            "kind",
            json!("rules"),
            vec!["shop: a rule file for rate limit services, ", " their own."],
        ),
    ] {
        let mut documents = page::published_documents("ann");
        documents["documents"][0][field] = value;
        answers(&browser, &documents)?;
        page::open(&browser, store.admin_port())?;
        for part in expected {
            browser.wait_for("#documents-says", part)?;
        }
    }
    Ok(())
}
