//! The report that a worker sends when it fetches dials: at most [`MAX_REPORT`] bytes, never cut.
//!
//! If a report is too long, the worker leaves out the requests that were let through first, and
//! then the refusals. Then it leaves out the counts of all but the busier half of the policies, of
//! all but the busiest quarter, and so on. It does not report them later: the store only shows
//! counts, and decides nothing by them.
//!
//! A report names at most [`MAX_NAMED`] policies, and half as many if these are too long for a
//! report. With more of them, half of a report belongs to the busiest ones, and all policies take
//! turns in the other half.
//!
//! `partition_by` of a policy never changes, so policies take turns. Each report includes it for as
//! many policies as fit into the remaining room, [`LEAST_PARTITION_BY`] to [`MAX_PARTITION_BY`]
//! bytes. The next report continues with the next policy.

use std::cmp::Reverse;

use quotagate_protocol::dials::{MAX_PARTITION_BY, MAX_REPORT, PolicyReport, Refusals, Report};
use quotagate_protocol::{BUILD, PROTOCOL};

use crate::config::{Config, Policy};
use crate::decision::Outcome;
use crate::worker::telemetry::tally::Counts;

/// What a report says besides the configuration and its counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportingWorker {
    /// Which of the workers of its process it is.
    pub index: u32,
    /// For how many seconds its configuration has been in force.
    pub in_force_s: u64,
}

/// The most policies of a report.
const MAX_NAMED: usize = 64;
/// Least bytes for `partition_by`, even if the report is long without it.
const LEAST_PARTITION_BY: usize = 256;

/// The report as JSON in printable ASCII. `None` if the policies alone are too long for a report.
/// `beyond` are the counters with refused requests, then those with requests that were let through.
/// `turn` is the index of the policy whose turn comes first. It advances to the next report's.
pub(crate) fn write(
    worker: ReportingWorker,
    configured: &Config,
    counts: &[Counts],
    beyond: [Vec<Refusals>; 2],
    turn: &mut usize,
) -> Option<String> {
    write_named(MAX_NAMED, worker, configured, counts, beyond.clone(), turn)
        .or_else(|| write_named(MAX_NAMED / 2, worker, configured, counts, beyond, turn))
}

/// The report of at most `most` policies. If it is too long, `turn` stays.
fn write_named(
    most: usize,
    worker: ReportingWorker,
    configured: &Config,
    counts: &[Counts],
    [refused, would_refuse]: [Vec<Refusals>; 2],
    turn: &mut usize,
) -> Option<String> {
    let ReportedPolicies { order, in_turn, next } = ReportedPolicies::new(counts, *turn, most);
    let policies = order
        .iter()
        .filter_map(|index| Some(policy(configured.policies.get(*index)?, counts.get(*index)?)));
    let mut report = Report {
        protocol: PROTOCOL,
        build: BUILD.to_owned(),
        proxy: configured.process.clone().into(),
        digest: configured.digest.clone().into(),
        number: configured.number(),
        in_force_s: worker.in_force_s,
        live: configured.is_live(),
        worker: worker.index,
        policies: policies.collect(),
        refused,
        would_refuse,
        wrong_document: configured.refused.clone(),
    };
    let bare = serde_json::to_string(&report).ok()?.len();
    let room = MAX_REPORT.saturating_sub(bare).clamp(LEAST_PARTITION_BY, MAX_PARTITION_BY);
    let said = say_partitions(&mut report.policies, configured, &in_turn, room);
    let next = said.unwrap_or(next);
    let mut quiet: Vec<usize> = (0..report.policies.len()).collect();
    quiet.sort_by_key(|at| Reverse(order.get(*at).map_or(0, |index| requests(counts, *index))));
    loop {
        let text = serde_json::to_string(&report).ok()?;
        if text.len() <= MAX_REPORT {
            *turn = next;
            return text.bytes().all(|b| (b' '..=b'~').contains(&b)).then_some(text);
        }
        if !report.would_refuse.is_empty() {
            report.would_refuse.clear();
            continue;
        }
        if !report.refused.is_empty() {
            report.refused.clear();
            continue;
        }
        if quiet.is_empty() {
            let said =
                report.policies.iter_mut().filter_map(|policy| policy.partition_by.take()).count();
            if said == 0 {
                return None;
            }
            continue;
        }
        for at in quiet.drain(quiet.len() / 2..) {
            if let (Some(counted), Some(index)) = (report.policies.get_mut(at), order.get(at))
                && let Some(policy) = configured.policies.get(*index)
            {
                *counted = PolicyReport {
                    partition_by: counted.partition_by.take(),
                    ..configured_as(policy)
                };
            }
        }
    }
}

/// The policies that a report names.
struct ReportedPolicies {
    /// Their indexes, in the order of the report.
    order: Vec<usize>,
    /// The positions in `order` of those whose turn it is, and their indexes, in this order.
    in_turn: Vec<(usize, usize)>,
    /// The index of the policy whose turn comes after them.
    next: usize,
}

impl ReportedPolicies {
    fn new(counts: &[Counts], turn: usize, most: usize) -> Self {
        let all = counts.len();
        let from_turn = (turn..all).chain(0..turn.min(all));
        if all <= most {
            return Self {
                order: (0..all).collect(),
                in_turn: from_turn.map(|index| (index, index)).collect(),
                next: 0,
            };
        }
        let mut order: Vec<usize> = from_turn.take(most / 2).collect();
        let in_turn = order.iter().copied().enumerate().collect();
        let next = order.last().map_or(0, |last| (last + 1) % all);
        let mut busiest: Vec<usize> =
            (0..all).filter(|index| requests(counts, *index) > 0).collect();
        busiest.sort_by_key(|index| Reverse(requests(counts, *index)));
        busiest.retain(|index| !order.contains(index));
        order.extend(busiest.into_iter().take(most / 2));
        Self { order, in_turn, next }
    }
}

fn requests(counts: &[Counts], index: usize) -> u64 {
    counts.get(index).map_or(0, |counts| counts.iter().sum())
}

/// Adds `partition_by` to the policies whose turn it is: to at least one, else in at most `most`
/// bytes. Returns the index of the first policy that finds no room.
fn say_partitions(
    policies: &mut [PolicyReport],
    configured: &Config,
    in_turn: &[(usize, usize)],
    most: usize,
) -> Option<usize> {
    let mut room = most;
    for &(at, index) in in_turn {
        let (Some(report), Some(policy)) = (policies.get_mut(at), configured.policies.get(index))
        else {
            continue;
        };
        let entries = policy.partition.reported();
        let bytes = serde_json::to_vec(&entries).map_or(usize::MAX, |json| json.len());
        if bytes > MAX_PARTITION_BY {
            continue;
        }
        let bytes = bytes + r#","partition_by":"#.len();
        if bytes > room && room < most {
            return Some(index);
        }
        room = room.saturating_sub(bytes);
        report.partition_by = Some(entries);
    }
    None
}

/// A policy as it is configured, with nothing counted.
fn configured_as(policy: &Policy) -> PolicyReport {
    let (kind, window_s, _) = policy.window.parts();
    PolicyReport {
        name: String::from(&*policy.name),
        quota: policy.quota,
        kind,
        window_s,
        stagger: policy.stagger,
        mode: policy.mode,
        on_failure: policy.on_failure,
        partition_by: None,
        tiers: policy.quotas.vary(),
        overrides: policy.quotas.overrides.reported(),
        settles: policy.settle.is_some(),
        admitted: 0,
        refused: 0,
        shadow_refused: 0,
        marked: 0,
        missing_identity: 0,
        store_error: 0,
        settled_if_missing: 0,
    }
}

fn policy(configured: &Policy, counts: &Counts) -> PolicyReport {
    let of = |outcome| counts.get(outcome as usize).copied().unwrap_or_default();
    PolicyReport {
        admitted: of(Outcome::Admitted),
        refused: of(Outcome::Refused),
        shadow_refused: of(Outcome::ShadowRefused),
        marked: of(Outcome::Marked),
        missing_identity: of(Outcome::MissingIdentity),
        store_error: of(Outcome::StoreError),
        settled_if_missing: of(Outcome::SettledIfMissing),
        ..configured_as(configured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_protocol::dials::MAX_REPORTED_KEY;
    use quotagate_protocol::{Calendar, MAX_TIME_ZONE, MAX_UNITS, Unit, Window};
    use serde_json::{Value, json};

    /// A request of each outcome, of a policy that does not settle costs.
    const UNSETTLED: Counts = [1, 1, 1, 1, 1, 1, 1, 0];

    fn config(policies: usize, name: impl Fn(usize) -> String) -> Config {
        let policy = |i| {
            json!({"name": name(i), "partition_by": [], "quota": MAX_UNITS, "window": "366d", "mode": "enforce",
                   "stagger": false, "on_failure": "allow"})
        };
        let policies: Vec<Value> = (0..policies).map(policy).collect();
        let text = json!({"domain": "d", "store": {"cluster": "s"}, "policies": policies});
        Config::parse(text.to_string().as_bytes()).unwrap()
    }

    fn read(text: &str) -> Report {
        assert!(text.len() <= MAX_REPORT, "{}", text.len());
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn report_holds_each_policy_as_configured_and_its_counts() {
        let text = r#"{"domain":"d","store":{"cluster":"s","on_failure":"deny"},"policies":[
            {"name":"a","partition_by":[],"quota":5,"window":"1m"},
            {"name":"b","partition_by":[],"quota":0,"window":"1h","stagger":true,"mode":"off","on_failure":"local"}]}"#;
        let mut config = Config::parse(text.as_bytes()).unwrap();
        (config.process, config.digest) = ("0123456789abcdef".into(), "0123456789ab".into());
        let refused = vec![Refusals { key: "d:a:{*}".to_owned(), requests: 7 }];
        let let_through = vec![Refusals { key: "d:b:{*}".to_owned(), requests: 3 }];
        let worker = ReportingWorker { index: 3, in_force_s: 7 };
        let text = write(
            worker,
            &config,
            &[[1, 2, 3, 4, 5, 6, 7, 8], [0; 8]],
            [refused, let_through],
            &mut 0,
        )
        .unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"protocol":1,"build":""#,
                env!("CARGO_PKG_VERSION"),
                r#"","proxy":"0123456789abcdef","digest":"0123456789ab","in_force_s":7,"worker":3,"#,
                r#""policies":[{"name":"a","quota":5,"window_s":60,"stagger":false,"mode":"enforce","#,
                r#""on_failure":"deny","partition_by":[],"admitted":1,"refused":2,"shadow_refused":3,"marked":7,"missing_identity":4,"#,
                r#""store_error":5,"settled_if_missing":8},{"name":"b","quota":0,"window_s":3600,"stagger":true,"mode":"off","#,
                r#""on_failure":"local","partition_by":[]}],"refused":[{"key":"d:a:{*}","requests":7}],"#,
                r#""would_refuse":[{"key":"d:b:{*}","requests":3}]}"#
            )
        );
    }

    #[test]
    fn largest_configuration_is_reported_without_counts() {
        let config = config(64, |i| format!("{i:0>64}"));
        let refused = vec![Refusals { key: "k".repeat(MAX_REPORTED_KEY), requests: u64::MAX }; 8];
        let report = read(
            &write(
                ReportingWorker::default(),
                &config,
                &[[u64::MAX / 8; 8]; 64],
                [refused.clone(), refused],
                &mut 0,
            )
            .unwrap(),
        );
        assert_eq!(report.policies.len(), 64);
        assert!(report.refused.is_empty() && report.would_refuse.is_empty());
        assert_eq!(report.policies[63], configured_as(&config.policies[63]));
    }

    #[test]
    fn report_says_the_kind_of_window_and_whether_costs_are_settled() {
        let text = r#"{"domain":"d","store":{"cluster":"s"},"policies":[
            {"name":"a","partition_by":[],"quota":5,"window":"1m","cost":{"reserve":2,"settle":[{"usage":"total"}]}},
            {"name":"b","partition_by":[],"quota":5,"window":"1h"}]}"#;
        let mut config = Config::parse(text.as_bytes()).unwrap();
        config.policies[1].window = calendar(Unit::Day, "Europe/Berlin");
        let report = read(
            &write(ReportingWorker::default(), &config, &[[0; 8]; 2], Default::default(), &mut 0)
                .unwrap(),
        );
        let of = |index: usize| serde_json::to_value(&report.policies[index]).unwrap();
        let (settled, daily) = (of(0), of(1));
        assert_eq!((&settled["settles"], &settled["kind"]), (&json!(true), &Value::Null));
        let berlin = json!({"calendar": {"unit": "day", "time_zone": "Europe/Berlin"}});
        assert_eq!((&daily["kind"], &daily["window_s"]), (&berlin, &Value::Null));
        assert_eq!(daily["settles"], Value::Null);
    }

    #[test]
    fn policies_with_long_calendars_are_reported_in_turns() {
        let mut config = config(64, |i| format!("{i:0>64}"));
        for policy in &mut config.policies {
            policy.window = calendar(Unit::Minute, &"Z".repeat(MAX_TIME_ZONE));
        }
        let (mut turn, mut named) = (0, std::collections::BTreeSet::new());
        for _ in 0..4 {
            let report = read(
                &write(
                    ReportingWorker::default(),
                    &config,
                    &[UNSETTLED; 64],
                    Default::default(),
                    &mut turn,
                )
                .unwrap(),
            );
            named.extend(report.policies.into_iter().map(|policy| policy.name));
        }
        assert_eq!(named.len(), 64);
    }

    fn calendar(unit: Unit, time_zone: &str) -> Window {
        Window::Calendar(Calendar { unit, time_zone: time_zone.into() })
    }

    #[test]
    fn partition_by_takes_turns_and_displaces_nothing_else() {
        let refused = vec![Refusals { key: "k".repeat(384), requests: 1 }; 8];
        for (policies, refused) in [(36, refused), (64, Vec::new())] {
            let config = config(policies, |i| format!("{i:0>26}"));
            let (mut turn, mut said) = (0, vec![false; policies]);
            for _ in 0..policies {
                let report = read(
                    &write(
                        ReportingWorker::default(),
                        &config,
                        &vec![UNSETTLED; policies],
                        [refused.clone(), Vec::new()],
                        &mut turn,
                    )
                    .unwrap(),
                );
                assert_eq!(report.refused.len(), refused.len());
                for (said, policy) in said.iter_mut().zip(&report.policies) {
                    *said |= policy.partition_by.is_some();
                }
            }
            assert!(said.iter().all(|said| *said), "{said:?}");
        }
    }

    #[test]
    fn largest_configuration_reports_partition_by_in_turns() {
        let config = config(64, |i| format!("{i:0>64}"));
        let (mut turn, mut said) = (0, 0);
        for _ in 0..64 {
            let report = read(
                &write(
                    ReportingWorker::default(),
                    &config,
                    &[[u64::MAX / 8; 8]; 64],
                    Default::default(),
                    &mut turn,
                )
                .unwrap(),
            );
            said += report.policies.iter().filter(|policy| policy.partition_by.is_some()).count();
        }
        assert!(said >= 64, "{said}");
    }

    #[test]
    fn refusals_are_left_out_first_then_counts_of_the_least_busy_policies() {
        let config = config(64, |i| format!("a-policy-with-a-longer-name-{i}"));
        let refused = vec![Refusals { key: "k".repeat(MAX_REPORTED_KEY), requests: 1 }; 8];
        let mut counts = [[0; 8]; 64];
        let report = read(
            &write(
                ReportingWorker::default(),
                &config,
                &counts,
                [refused.clone(), Vec::new()],
                &mut 0,
            )
            .unwrap(),
        );
        assert!(
            report.refused.is_empty(),
            "64 policies of 150 bytes and 8 refusals of 400 do not fit"
        );
        assert_eq!(
            read(
                &write(
                    ReportingWorker::default(),
                    &config,
                    &counts[..8],
                    [refused, Vec::new()],
                    &mut 0
                )
                .unwrap()
            )
            .refused
            .len(),
            8
        );
        for (i, counts) in counts.iter_mut().enumerate() {
            *counts = [1_000_000 + i as u64; 8];
        }
        let report = read(
            &write(ReportingWorker::default(), &config, &counts, Default::default(), &mut 0)
                .unwrap(),
        );
        let counted: Vec<bool> = report.policies.iter().map(|policy| policy.admitted > 0).collect();
        assert!(
            counted[48..].iter().all(|counted| *counted)
                && !counted[..48].iter().any(|counted| *counted),
            "{counted:?}"
        );
    }

    #[test]
    fn report_holds_partition_by_and_whether_tiers_exist() {
        let text = r#"{"domain":"d","store":{"cluster":"s"},
            "identities":{"caller":[{"jwt":{"claims":["iss","sub"]}},
              {"header":{"name":"x-key","secret":true}},{"client_ip":{}}]},
            "policies":[
            {"name":"a","quota":5,"window":"1m","partition_by":["caller","method"],"on_missing":"deny",
             "quota_from":{"jwt":{"claim":"limit"},"max":9}},
            {"name":"b","quota":5,"window":"1m","partition_by":["path"]}]}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        let report = read(
            &write(ReportingWorker::default(), &config, &[[0; 8]; 2], Default::default(), &mut 0)
                .unwrap(),
        );
        let said = serde_json::to_value(&report.policies).unwrap();
        assert_eq!(
            said[0]["partition_by"],
            json!([
                {"name": "caller", "forms": ["jwt.iss,jwt.sub", "header.x-key=~", "ip=/64"]},
                {"name": "method", "forms": ["method"]},
            ])
        );
        assert_eq!(said[1]["partition_by"], json!([{"name": "path", "forms": ["path", "-"]}]));
        assert_eq!((&said[0]["tiers"], &said[1]["tiers"]), (&json!(true), &Value::Null));
    }

    #[test]
    fn all_of_1024_policies_are_reported_in_turns_and_busy_ones_always() {
        let config = config(1024, |i| format!("{i:0>64}"));
        let mut counts = vec![[0; Outcome::ALL.len()]; 1024];
        for (busy, counts) in counts.iter_mut().enumerate().skip(500).take(40) {
            counts[0] = 1_000 + busy as u64;
        }
        let (mut turn, mut named, mut said) = (0, vec![0; 1024], vec![false; 1024]);
        for _ in 0..400 {
            let report = read(
                &write(ReportingWorker::default(), &config, &counts, Default::default(), &mut turn)
                    .unwrap(),
            );
            assert!(report.policies.len() <= MAX_NAMED);
            for policy in &report.policies {
                let index: usize = policy.name.parse().unwrap();
                named[index] += 1;
                said[index] |= policy.partition_by.is_some();
                assert!(policy.admitted == 0 || policy.admitted == counts[index][0]);
            }
        }
        assert!(named.iter().all(|times| *times > 0) && said.iter().all(|said| *said));
        assert!(named[508..540].iter().all(|times| *times == 400), "{:?}", &named[500..540]);
    }

    #[test]
    fn many_policies_take_turns_to_report_partition_by() {
        let mut text: Value = json!({"domain": "d", "store": {"cluster": "s"}, "policies": [],
            "identities": {"caller": [{"metadata": {"filter": "f".repeat(60), "path": ["p".repeat(60)]}}]}});
        for i in 0..40 {
            let policy = json!({"name": format!("p{i}"), "quota": 1, "window": "1m", "partition_by": ["caller"]});
            text["policies"].as_array_mut().unwrap().push(policy);
        }
        let config = Config::parse(text.to_string().as_bytes()).unwrap();
        let (mut turn, mut said) = (0, std::collections::BTreeSet::new());
        for _ in 0..4 {
            let report = read(
                &write(
                    ReportingWorker::default(),
                    &config,
                    &[[0; 8]; 40],
                    Default::default(),
                    &mut turn,
                )
                .unwrap(),
            );
            let policies = report.policies.iter().filter(|policy| policy.partition_by.is_some());
            let names: Vec<&str> = policies.map(|policy| &*policy.name).collect();
            assert!((5..20).contains(&names.len()), "{names:?}");
            said.extend(names.into_iter().map(str::to_owned));
        }
        assert_eq!(said.len(), 40);
    }
}
