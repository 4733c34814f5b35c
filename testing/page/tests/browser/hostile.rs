//! Names that an attacker chose to harm the readers of the page.

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_support::store::StoreProcess;
use serde_json::json;

const LONG: usize = 500;

fn hostile() -> Vec<String> {
    let mark = "window.hit = 1";
    vec![
        format!("<img src=x onerror=\"{mark}\">"),
        format!("\"><script>{mark}</script>"),
        format!("</script><script>{mark}</script>"),
        format!("' onfocus='{mark}' autofocus='"),
        format!("javascript:{mark}"),
        format!("jwt.sub=\u{202e}{mark}\u{2066}\u{200b}\u{0}\n\u{7f}"),
        "x".repeat(LONG),
    ]
}

#[test]
fn names_are_rendered_as_text_everywhere() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    for name in hostile() {
        let mut picture = page::full_picture(&name);
        for field in ["faults", "warnings", "documents", "mixed"] {
            picture[field] = json!([name]);
        }
        picture["backend"] = json!(name);
        let mut domain = picture["domains"]["shop"].take();
        domain["policies"]["per-caller"]["name"] = json!(name);
        picture["domains"] = json!({ name.as_str(): domain });
        page::make_up(&browser, &picture, &page::one_override(&name), &page::one_change(&name))?;
        let documents = page::published_documents(&name);
        browser.run_before_pages(&format!("window.made.lists['/v1/documents'] = {documents}"))?;
        page::open(&browser, store.admin_port())?;
        browser.wait_for("#history", "1970")?;
        browser.wait_for("#documents-says", ", published at ")?;
        // The names also appear in the forms and the confirmation.
        browser.click("#refused button")?;
        assert_eq!(browser.run("return document.querySelector('#override').open", vec![])?, true);
        let script = "
            const text = document.body.innerText;
            return {
              hit: window.hit ?? 0,
              strange: document.querySelectorAll('main img, main script, main iframe, main [onerror], main [onfocus], main [autofocus], dialog img').length,
              unseen: /[\\u0000-\\u0008\\u000e-\\u001f\\u007f\\u200b\\u202a-\\u202e\\u2066-\\u2069]/.test(text),
              partition: document.querySelector('#refused .theirs').textContent,
              whole: document.querySelector('#refused button').title,
              override: document.querySelector('#override-partition').value,
              wide: document.documentElement.scrollWidth - innerWidth,
            }";
        let found = browser.run(script, vec![])?;
        assert_eq!(found["hit"], 0, "{name:?} ran");
        assert_eq!(found["strange"], 0, "{name:?} became elements");
        assert_eq!(found["unseen"], false, "{name:?} hides characters");
        assert_eq!(found["wide"], 0, "{name:?} widens the page");
        let shown = found["partition"].as_str().unwrap_or_default();
        assert!(shown.chars().count() <= 80, "{shown}");
        if name.len() == LONG {
            assert!(shown.contains('…'), "{shown}");
            assert_eq!(found["whole"], name, "the whole name is reachable");
            assert_eq!(found["override"], name);
        } else if name.is_ascii() {
            assert!(name.starts_with(shown.split('…').next().unwrap_or_default()), "{shown}");
        } else {
            assert!(shown.contains("\\u{202e}"), "{shown}");
        }
    }
    Ok(())
}

#[test]
fn page_runs_no_foreign_code_and_contacts_only_its_origin() -> Result<()> {
    let made = page::full_picture("jwt.sub=alice");
    let (_store, browser) =
        page::open_made_up(&made, &page::one_override("jwt.sub=bob"), &page::one_change("ada"))?;
    // What an attacker who could add elements would do.
    let script = "
        const script = document.createElement('script');
        const text = (() => { try { script.textContent = 'window.hit = 1'; document.body.append(script); return 'set'; } catch { return 'refused'; } })();
        script.append('window.hit = 2'); document.body.append(script);
        const html = (() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch { return 'refused'; } })();
        const styled = document.createElement('p'); styled.setAttribute('style', 'position: fixed'); document.body.append(styled);
        const far = await fetch('http://127.0.0.2:1/').then(() => 'sent', (e) => e.name);
        return [window.hit ?? 0, text, html, getComputedStyle(styled).position, far, document.querySelectorAll('main').length];";
    let tried = browser.run_async(script, vec![])?;
    assert_eq!(tried, json!([0, "refused", "refused", "static", "TypeError", 1]));
    let entries = "return performance.getEntries().map((e) => e.name).filter((name) => /^https?:/.test(name) && new URL(name).origin !== location.origin)";
    assert_eq!(browser.run(entries, vec![])?, json!([]));
    Ok(())
}

#[test]
fn names_in_the_address_are_rendered_as_text() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    for name in hostile() {
        let mut picture = page::full_picture(&name);
        let domain = picture["domains"]["shop"].take();
        picture["domains"] = json!({ name.as_str(): domain });
        page::make_up(&browser, &picture, &json!([]), &json!([]))?;
        let usage = json!({"found": [{"domain": name, "policy": name, "partition": name, "used": 1, "quota": 9,
            "quota_from": "policy", "window_s": 60, "reset_ms": 42_000, "mode": "enforce"}]});
        browser.run_before_pages(&format!("window.made.lists['/v1/usage'] = {usage}"))?;
        for view in ["party", "policy", "domain", "environment"] {
            page::open(&browser, store.admin_port())?;
            let go = "location.search = new URLSearchParams({[arguments[0]]: arguments[1]})";
            browser.run(go, vec![json!(view), json!(name)])?;
            browser.wait_for("#connection", page::LIVE)?;
            let script = "return [window.hit ?? 0, document.querySelectorAll('main img, main script, main [onerror], main [onfocus]').length,
                document.documentElement.scrollWidth - innerWidth, /[\\u200b\\u202e\\u2066]/.test(document.body.innerText + document.title)]";
            assert_eq!(browser.run(script, vec![])?, json!([0, 0, 0, false]), "{view} {name:?}");
        }
    }
    Ok(())
}
