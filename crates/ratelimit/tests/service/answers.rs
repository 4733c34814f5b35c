//! What answers contain.

use quotagate_ratelimit::headers::HeaderNames;
use quotagate_ratelimit::messages::{Code, RateLimitRequest, RequestLimit, Unit};
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, descriptor, hits, memory, passes, statuses};

const RULES: &str = "
domain: d
descriptors:
  - {key: small, rate_limit: {unit: day, requests_per_unit: 2, name: tiny}, metadata: {who: {small: 1}}}
  - {key: large, rate_limit: {unit: day, requests_per_unit: 9}, metadata: {who: {large: yes}, x: 2}}
  - {key: free, rate_limit: {unlimited: true}}
";

fn with(answers: AnswerOptions) -> Bench {
    Bench::with(RULES, answers, counting(), memory())
}

#[tokio::test]
async fn each_descriptor_has_its_status() {
    let bench = Bench::new(RULES);
    let asked = ["small=a", "free=a", "none=a", "large=a"].map(descriptor);
    let answer = bench.ask(&asked).await;
    assert_eq!(
        statuses(&answer),
        [(Code::Ok, 1), (Code::Ok, u32::MAX), (Code::Ok, 0), (Code::Ok, 8)]
    );
    let limit = answer.statuses[0].current_limit.clone().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
        ("tiny", 2, Unit::Day)
    );
    let reset = answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds;
    assert!((1..=86_400).contains(&reset), "{reset}");
    assert!(answer.statuses[1].current_limit.is_none());
    assert!(answer.response_headers_to_add.is_empty() && answer.dynamic_metadata.is_none());
}

#[tokio::test]
async fn hits_beyond_the_limit_reset_when_the_window_ends() {
    for unit in ["hour", "week", "month", "year"] {
        let limit = format!("rate_limit: {{unit: {unit}, requests_per_unit: 2}}");
        let bench = Bench::new(&format!("domain: d\ndescriptors:\n- {{key: k, {limit}}}\n"));
        let reset = async |asked| {
            bench.ask(&[asked]).await.statuses[0].duration_until_reset.as_ref().unwrap().seconds
        };
        let (refused, passed) = (reset(hits("k=a", 3)).await, reset(descriptor("k=a")).await);
        // A window may end between the two.
        assert!((refused - passed).abs() <= 10 || refused <= 10, "{unit}: {refused} {passed}");
    }
}

#[tokio::test]
async fn headers_are_of_the_limit_that_is_nearest() {
    let names = HeaderNames { limit: "L".into(), remaining: "R".into(), reset: "T".into() };
    let bench = with(AnswerOptions { headers: Some(names), ..AnswerOptions::default() });
    let headers = async |asked: &[_]| -> Vec<(String, String)> {
        let answer = bench.ask(asked).await;
        let headers = answer.response_headers_to_add.into_iter();
        headers.map(|header| (header.key, header.value)).filter(|(key, _)| key != "T").collect()
    };
    let pair = |limit: &str, remaining: &str| {
        vec![("L".to_owned(), limit.to_owned()), ("R".to_owned(), remaining.to_owned())]
    };
    let both = [descriptor("large=a"), descriptor("small=a")];
    assert_eq!(headers(&both).await, pair("2", "1"));
    assert_eq!(headers(&both[..1]).await, pair("9", "7"));
    assert_eq!(headers(&both).await, pair("2", "0"));
    assert_eq!(headers(&both).await, pair("2", "0"), "the one that refuses");
    assert!(headers(&[descriptor("free=a"), descriptor("none=a")]).await.is_empty());
}

#[tokio::test]
async fn metadata_tells_the_request_and_the_rules_that_passed() {
    let bench = with(AnswerOptions { metadata: true, ..AnswerOptions::default() });
    let answer = bench.ask(&[descriptor("large=a"), hits("small=a", 1)]).await;
    let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
    for part in ["\"d\"", "large=a", "small=a", "hitsAddend", "NumberValue(2.0)", "BoolValue(true)"]
    {
        assert!(metadata.contains(part), "{part}: {metadata}");
    }
}

#[tokio::test]
async fn limit_of_the_request_precedes_the_rule() {
    let bench = Bench::new(RULES);
    let limit = |key: &str, requests_per_unit, unit: Unit| {
        let limit = RequestLimit { requests_per_unit, unit: unit.into() };
        quotagate_ratelimit::messages::Descriptor { limit: Some(limit), ..descriptor(key) }
    };
    for passed in [true, false] {
        assert_eq!(bench.passes(limit("small=b", 1, Unit::Day)).await, passed);
        assert_eq!(bench.passes(limit("none=b", 1, Unit::Hour)).await, passed);
    }
    assert!(bench.passes(descriptor("small=b")).await, "the rule has one more on the same counter");
    let error = bench.try_ask(&[limit("small=b", 1, Unit::Unknown)]).await.unwrap_err();
    assert!(error.to_string().contains("unit"), "{error}");
}

#[tokio::test]
async fn request_that_makes_no_sense_has_no_answer() {
    let bench = Bench::new(RULES);
    assert!(bench.try_ask(&[]).await.is_err());
    let ask = |domain: &str| RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![descriptor("small=a")],
        hits_addend: 0,
    };
    assert!(bench.service.should_rate_limit(&ask("")).await.is_err());
    assert!(passes(&bench.service.should_rate_limit(&ask("unknown")).await.unwrap()));
    assert!(bench.try_ask(&[hits("small=a", u64::MAX)]).await.is_err());
}

#[tokio::test]
async fn metrics_split_hits_as_the_original_does() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: s, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
",
    );
    for key in ["k=a", "s=a"] {
        for count in [7, 6] {
            bench.ask(&[hits(key, count)]).await;
        }
    }
    bench.ask(&[descriptor("a")]).await;
    let metrics = bench.service.metrics.text();
    for line in [
        // 7 are within the limit. Of 6 more, one is up to near, two are near and 3 beyond.
        "within_limit{domain=\"d\",key1=\"k\"} 7",
        "near_limit{domain=\"d\",key1=\"k\"} 2",
        "over_limit{domain=\"d\",key1=\"k\"} 3",
        "shadow_mode{domain=\"d\",key1=\"k\"} 0",
        "near_limit{domain=\"d\",key1=\"s\"} 2",
        "over_limit{domain=\"d\",key1=\"s\"} 3",
        "shadow_mode{domain=\"d\",key1=\"s\"} 3",
        "within_limit{domain=\"d\",key1=\"a_\"} 1",
    ] {
        let line = format!("ratelimit_service_rate_limit_{line}");
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}
