//! Every fault in its short form: one round of a few seconds each.

#![cfg(test)]

use quotagate_chaos::faults;
use quotagate_chaos::plan::Plan;
use quotagate_chaos::report;

/// Each test has the name of its fault, as the report cites it.
macro_rules! faults {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                hold(stringify!($name));
            }
        )+

        #[test]
        fn every_fault_has_a_test() {
            let all: Vec<&str> = faults::all().iter().map(|fault| fault.name).collect();
            assert_eq!(all, [$(stringify!($name)),+]);
        }
    };
}

faults![
    store_killed,
    one_of_two_stores_killed,
    store_killed_under_allow,
    store_frozen,
    one_of_two_stores_frozen,
    one_of_two_stores_frozen_quiet,
    one_of_two_stores_vanished,
    one_of_two_stores_vanished_quiet,
    network_still,
    network_late,
    network_cutting,
    redis_killed,
    redis_frozen,
    scripts_flushed,
    everything_flushed,
    memory_full,
    counters_evicted,
    primary_killed,
    primary_frozen,
    slots_moved,
    skewed_primary_killed,
    skewed_primary_frozen,
    clock_jumped,
    envoy_restarted,
    envoy_killed,
    configurations_pushed,
    machines_died,
    short_timeout_under_deny,
    short_timeout_under_allow,
];

fn hold(name: &str) {
    let fault = faults::named(name).unwrap();
    if fault.only.is_some_and(|form| !form.is_under_test(name).unwrap()) {
        return;
    }
    let plan = Plan::short(1);
    let findings = fault.findings(&plan).unwrap();
    let faults = findings.faults(&fault.bounds, &plan);
    assert!(faults.is_empty(), "{}\n{}", faults.join("\n"), report::row(&fault, &findings));
}
