//! Converts metrics from OpenMetrics to the older of Prometheus' two text formats (0.0.4).
//!
//! The older format names the family of a counter with its suffix `_total`, which OpenMetrics
//! leaves out. It has no type `info`, no units and no end mark.

/// The same metrics as plain text.
pub fn of(open: &str) -> String {
    let mut plain = String::with_capacity(open.len());
    // The help of a family comes before its type, and its name depends on the type.
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, text)) = help.take() {
                plain += &format!("# HELP {name}{suffix} {text}\n");
            }
            plain += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            plain += line;
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_names_of_their_samples() {
        let open = "# HELP a_calls Calls.\n# TYPE a_calls counter\na_calls_total{status=\"200\"} 2\n\
                    # HELP a_build Version.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
                    # HELP a_time_seconds Time.\n# TYPE a_time_seconds histogram\n# UNIT a_time_seconds seconds\n\
                    a_time_seconds_bucket{le=\"+Inf\"} 1\n# HELP b Both.\n# TYPE b gauge\nb 1\n# EOF\n";
        let plain = "# HELP a_calls_total Calls.\n# TYPE a_calls_total counter\na_calls_total{status=\"200\"} 2\n\
                     # HELP a_build_info Version.\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n\
                     # HELP a_time_seconds Time.\n# TYPE a_time_seconds histogram\n\
                     a_time_seconds_bucket{le=\"+Inf\"} 1\n# HELP b Both.\n# TYPE b gauge\nb 1\n";
        assert_eq!(of(open), plain);
    }
}
