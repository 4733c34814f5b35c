//! The text format of the metrics that the `Accept` header of a scrape asks for.

use axum::http::header::{ACCEPT, HeaderMap};

/// Prometheus' text formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    Open,
    /// Text 0.0.4, the default. Every scraper reads it.
    Plain,
}

impl Format {
    /// The format that a request asks for: OpenMetrics if `Accept` names it, with a quality of at
    /// least that of plain text.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<(&str, f32)> = lists.flat_map(|list| list.split(',')).map(range).collect();
        let quality = |kinds: &[&str]| {
            let named = |kind: &&str| {
                let of_kind = ranges.iter().filter(|(range, _)| range.eq_ignore_ascii_case(kind));
                of_kind.map(|(_, quality)| *quality).reduce(f32::max)
            };
            kinds.iter().find_map(named).unwrap_or(0.0)
        };
        let open = quality(&["application/openmetrics-text"]);
        let plain = quality(&["text/plain", "text/*", "*/*"]);
        if open > 0.0 && open >= plain { Self::Open } else { Self::Plain }
    }

    /// The media type of the response.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A media range without its parameters, and its quality. An unreadable quality counts as 1.
fn range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix("q=")).and_then(|q| q.parse().ok());
    (kind, quality.unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use axum::http::header::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_are_served_only_on_request() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            ("", Format::Plain),
            ("*/*", Format::Plain),
            ("text/html", Format::Plain),
            ("text/plain;version=0.0.4", Format::Plain),
            ("application/openmetrics-text; version=1.0.0", Format::Open),
            ("application/openmetrics-text;q=0", Format::Plain),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.9", Format::Plain),
            ("application/openmetrics-text, */*;q=0.1", Format::Open),
            ("Application/OpenMetrics-Text;q=x", Format::Open),
            (";;;,q=,,", Format::Plain),
            (prometheus, Format::Open),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(Format::accepted(&headers), format, "{accept}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Plain);
    }
}
