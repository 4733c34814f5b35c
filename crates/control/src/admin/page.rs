//! The live page: `GET /` of the admin address.
//!
//! One answer that includes its style and its script, put together of the files in `page/` when
//! the store is compiled. The files of the script are parts of one function, in the order below.
//! The page holds no data, so everyone may load it. The script fetches the data, with the token
//! that the operator types. The `Content-Security-Policy` allows only this style and this script,
//! by their digests, and lets them connect only to this origin.

use std::sync::LazyLock;

use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quotagate_store::server::SharedBytes;
use sha2::{Digest, Sha256};

const PAGE: &str = concat!(
    include_str!("page/head.html"),
    "<style>\n",
    include_str!("page/style.css"),
    "</style>\n",
    include_str!("page/body.html"),
    include_str!("page/dialogs.html"),
    "<script>\n'use strict';\n(() => {\n",
    include_str!("page/text.js"),
    include_str!("page/store.js"),
    include_str!("page/stream.js"),
    include_str!("page/address.js"),
    include_str!("page/model.js"),
    include_str!("page/chart.js"),
    include_str!("page/overview.js"),
    include_str!("page/documents.js"),
    include_str!("page/partitions.js"),
    include_str!("page/lists.js"),
    include_str!("page/policy.js"),
    include_str!("page/party.js"),
    include_str!("page/dialogs.js"),
    include_str!("page/start.js"),
    "})();\n</script>\n</body>\n</html>\n",
);

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    // Digests are ASCII, so this does not fail. If it did, the page would lose its script, not its
    // protection.
    HeaderValue::from_str(&policy(PAGE)).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The page.
pub async fn serve() -> Response {
    let mut response = Html(PAGE).into_response();
    response.extensions_mut().insert(SharedBytes);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    let fixed = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

fn policy(page: &str) -> String {
    let [script, style] = ["script", "style"].map(|element| sources(page, element));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    )
}

/// The digests of all elements of this name, as a source list.
fn sources(page: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let inside = page.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0));
    let digests: Vec<String> =
        inside.map(|text| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))).collect();
    if digests.is_empty() { "'none'".to_owned() } else { digests.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_style_and_the_script_of_the_page_may_run() {
        let policy = policy("<style>b{}</style><p>x</p><script>1</script>");
        // printf 'b{}' | openssl dgst -sha256 -binary | base64
        assert!(
            policy.contains("style-src 'sha256-7yqHVAesot11p6HczDsgKRipvI5UPgs97z80zNXlans=';"),
            "{policy}"
        );
        assert!(
            policy.contains("script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s=';"),
            "{policy}"
        );
        assert!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(super::policy("<p>x</p>").contains("script-src 'none'; style-src 'none';"));
    }

    #[test]
    fn page_has_one_style_and_one_script_and_loads_nothing_else() {
        for element in ["style", "script"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
            assert_eq!(sources(PAGE, element).matches("'sha256-").count(), 1, "{element}");
        }
        // Browsers do not fetch the SVG namespace.
        let addresses = PAGE.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "//cdn", "url(", "@import", "localStorage"] {
            assert!(!addresses.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn page_inserts_text_only_as_text() {
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            " style=",
            " onclick=",
        ] {
            assert!(!PAGE.contains(way), "{way}");
        }
    }

    #[tokio::test]
    async fn page_is_served_with_its_security_headers() {
        let response = serve().await;
        let header =
            |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(header("content-security-policy"), Some(policy(PAGE).as_str()));
        assert_eq!(header("cache-control"), Some("no-store"));
        assert_eq!(header("referrer-policy"), Some("no-referrer"));
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
        assert_eq!(header("cross-origin-opener-policy"), Some("same-origin"));
        assert_eq!(header("cross-origin-resource-policy"), Some("same-origin"));
    }
}
