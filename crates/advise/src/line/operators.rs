//! Finds the operators of a format string for the fields to read.

use super::fields::{COST, DECISION, DURATION, Fields, KEY, NUMBER, PATH, POLICY, TIME};
use super::text::Format;
use super::time::TimeFormat;

/// Selects the operators of all fields. Returns the operator that the format lacks, if any.
pub(super) fn want(
    format: &mut Format,
    fields: &Fields,
    names: &[Option<String>; NUMBER],
) -> Option<String> {
    let is_time = |name: &str| name == "START_TIME" || name.starts_with("START_TIME(");
    let is_path =
        |name: &str| name.starts_with("PATH(") || name == "PATH" || name.ends_with(":PATH)");
    let found = match &fields.time {
        Some(time) => format.want(|name| name == time, TIME),
        None => format.want(is_time, TIME),
    };
    if !found {
        return Some(fields.time.clone().unwrap_or_else(|| "%START_TIME%".to_owned()));
    }
    for (field, given, shipped) in
        [(KEY, &fields.key, quota("partition")), (POLICY, &fields.policy, quota("policy"))]
    {
        let name = given.clone().unwrap_or(shipped);
        let needed = field == KEY || given.is_some();
        if names.get(field).is_some_and(Option::is_some)
            && !format.want(|other| other == name, field)
            && needed
        {
            return Some(format!("%{name}%"));
        }
    }
    if names.get(PATH).is_some_and(Option::is_some) {
        let found = match &fields.path {
            Some(path) => format.want(|name| name == path, PATH),
            None => format.want(is_path, PATH),
        };
        if !found {
            return Some("%PATH%".to_owned());
        }
    }
    // The decision tells whether `-` is a user. A format may do without it.
    let decision = quota("decision");
    format.want(|name| name == decision, DECISION);
    let duration = fields.duration.as_deref();
    let duration = duration.map(|name| if name == "duration" { "DURATION" } else { name });
    for (field, operator) in [(COST, fields.cost.as_deref()), (DURATION, duration)] {
        if let Some(operator) = operator
            && !format.want(|name| name == operator, field)
        {
            return Some(format!("%{operator}%"));
        }
    }
    None
}

/// The operator for a filter state field of the filter.
pub(super) fn quota(field: &str) -> String {
    format!("FILTER_STATE(wasm.quotagate.{field}:PLAIN)")
}

/// The format of Envoy's `START_TIME(..)`; `%3f` and its like are read by `%f`.
pub(super) fn strftime(arguments: &str) -> TimeFormat {
    let mut format = arguments.to_owned();
    for digit in '1'..='9' {
        format = format.replace(&format!("%{digit}f"), "%f");
    }
    TimeFormat::Strftime(format)
}
