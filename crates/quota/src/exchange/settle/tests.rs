//! Where the real cost comes from.

use super::*;
use crate::config::{Measure, MissingCost, Weights};

/// A response: headers, trailers, and the metadata of the filter `f`.
#[derive(Default)]
struct SettledResponse {
    headers: Vec<(&'static str, &'static str)>,
    trailers: Vec<(&'static str, &'static str)>,
    tokens: Option<Vec<u8>>,
}

fn named(fields: &[(&str, &str)], name: &str) -> Vec<Vec<u8>> {
    let named = fields.iter().filter(|(known, _)| *known == name);
    named.map(|(_, value)| value.as_bytes().to_vec()).collect()
}

impl Upstream for SettledResponse {
    fn status(&self) -> Option<u16> {
        Some(200)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        named(&self.headers, name)
    }

    fn trailer(&self, name: &str) -> Vec<Vec<u8>> {
        named(&self.trailers, name)
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        assert_eq!((filter, path), ("f", &["tokens".into()][..]));
        self.tokens.clone()
    }
}

fn header() -> CostSource {
    CostSource::Header("x-cost".into())
}

fn trailer() -> CostSource {
    CostSource::Trailer("x-cost".into())
}

fn metadata() -> CostSource {
    CostSource::Metadata { filter: "f".into(), path: ["tokens".into()].into() }
}

fn settle(sources: impl Into<Box<[CostSource]>>) -> Settle {
    Settle { sources: sources.into(), missing: MissingCost::Reserved }
}

/// How a response ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

/// The cost of a response with this body. 50 units are reserved.
fn cost(settle: &Settle, response: &SettledResponse, body: &str, end: End) -> Option<u64> {
    let mut progress = SettleProgress::begin(std::iter::once((3, settle)), response);
    assert_eq!(progress.reads_body(), settle.reads_body());
    progress.body(body.as_bytes());
    if end == End::Whole {
        progress.trailers(std::iter::once((3, settle)), response);
        progress.complete();
    }
    progress.cost(3, settle, 50, response, end == End::Broken).map(|cost| cost.units)
}

const JSON: (&str, &str) = ("content-type", "application/json");
const USED: &str = r#"{"usage": {"prompt_tokens": 9, "completion_tokens": 3}}"#;
const EVENTS: (&str, &str) = ("content-type", "text/event-stream");

#[test]
fn first_source_with_a_whole_number_wins() {
    let response = SettledResponse {
        headers: vec![("x-cost", " 7 ")],
        trailers: vec![("x-cost", "8")],
        ..SettledResponse::default()
    };
    for (sources, expected) in [
        (vec![header(), trailer()], 7),
        (vec![trailer(), header()], 8),
        (vec![CostSource::Header("x-other".into()), trailer()], 8),
        (vec![CostSource::Header("x-other".into())], 50),
    ] {
        let found = cost(&settle(sources), &response, "", End::Whole);
        assert_eq!(found, Some(expected));
    }
    for no_number in ["", "-1", "1.5", "0x1", "7, 8"] {
        let response =
            SettledResponse { headers: vec![("x-cost", no_number)], ..SettledResponse::default() };
        assert_eq!(cost(&settle([header()]), &response, "", End::Whole), Some(50), "{no_number}");
    }
    let twice = SettledResponse { headers: vec![("x-cost", "7"); 2], ..SettledResponse::default() };
    assert_eq!(cost(&settle([header()]), &twice, "", End::Whole), Some(50), "which one?");
}

#[test]
fn missing_cost_is_what_the_policy_says() {
    for (missing, expected) in
        [(MissingCost::Reserved, 50), (MissingCost::Units(0), 0), (MissingCost::Units(70), 70)]
    {
        let settle = Settle { missing, ..settle([header()]) };
        assert_eq!(cost(&settle, &SettledResponse::default(), "", End::Broken), Some(expected));
    }
}

#[test]
fn metadata_may_come_until_the_stream_ends() {
    let settle = settle([metadata(), header()]);
    let mut response =
        SettledResponse { headers: vec![("x-cost", "7")], ..SettledResponse::default() };
    assert_eq!(cost(&settle, &response, "", End::Whole), None, "another filter may still write it");
    assert_eq!(cost(&settle, &response, "", End::Broken), Some(7));
    for (raw, expected) in [
        (12.0_f64.to_le_bytes().to_vec(), 12),
        (12.5_f64.to_le_bytes().to_vec(), 7),
        ((-1.0_f64).to_le_bytes().to_vec(), 7),
        (b"12345678".to_vec(), 12_345_678),
        (b"0".to_vec(), 0),
        (b"12 tokens".to_vec(), 7),
    ] {
        response.tokens = Some(raw.clone());
        assert_eq!(cost(&settle, &response, "", End::Broken), Some(expected), "{raw:?}");
    }
}

#[test]
fn usage_counts_by_its_weights_and_is_a_lower_bound_if_it_breaks_off() {
    let response = SettledResponse { headers: vec![JSON], ..SettledResponse::default() };
    let total = settle([CostSource::Usage(Measure::Total)]);
    assert_eq!(cost(&total, &response, USED, End::Whole), Some(12));
    assert_eq!(cost(&total, &response, "{}", End::Whole), Some(50));
    assert_eq!(cost(&total, &response, USED, End::Broken), Some(12), "the JSON is complete");
    let part = &format!("{}, ", USED.strip_suffix('}').unwrap());
    assert_eq!(cost(&total, &response, part, End::Broken), Some(50), "the rest may be missing");
    let nothing = Settle { missing: MissingCost::Units(0), ..total };
    assert_eq!(cost(&nothing, &response, part, End::Broken), Some(12));
    let weights = Weights::new(1.0, None, 4.0).unwrap();
    let weighted = settle([CostSource::Usage(Measure::Weighted(weights))]);
    assert_eq!(cost(&weighted, &response, USED, End::Whole), Some(21));
}

#[test]
fn usage_of_a_stream_is_final_with_its_last_event() {
    let response = SettledResponse { headers: vec![EVENTS], ..SettledResponse::default() };
    let total = settle([CostSource::Usage(Measure::Total)]);
    let event = format!("data: {USED}\n\n");
    for (body, expected) in [
        (event.clone(), 50),
        (format!("{event}data: [DONE]\n\n"), 12),
        ("data: [DONE]\n\n".to_owned(), 50),
    ] {
        assert_eq!(cost(&total, &response, &body, End::Broken), Some(expected), "{body}");
    }
    let trailer_first = settle([trailer(), CostSource::Usage(Measure::Total)]);
    let body = format!("{event}data: [DONE]\n\n");
    assert_eq!(
        cost(&trailer_first, &response, &body, End::Broken),
        Some(50),
        "the trailer that comes first was still to come"
    );
    assert_eq!(cost(&trailer_first, &response, &body, End::Whole), Some(12));
}

#[test]
fn compressed_body_is_not_read() {
    let total = settle([CostSource::Usage(Measure::Total)]);
    for headers in [
        vec![JSON, ("content-encoding", "gzip")],
        vec![JSON, ("content-encoding", "identity"), ("content-encoding", "br")],
    ] {
        let response = SettledResponse { headers, ..SettledResponse::default() };
        let mut progress = SettleProgress::begin(std::iter::once((0, &total)), &response);
        assert!(!progress.reads_body());
        progress.body(USED.as_bytes());
        progress.complete();
        let cost = RealCost { units: 50, is_missing: true };
        assert_eq!(progress.cost(0, &total, 50, &response, false), Some(cost));
    }
}
