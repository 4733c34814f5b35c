//! `quotagate advise`: its input, its output and its exit status.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Alice has three requests, nine other users one each.
fn log() -> String {
    let line = |user: &str, second: usize| {
        format!(
            "{{\"time\":\"2026-01-31T12:00:{second:02}.000Z\",\"quota_policy\":\"per-caller\",\"quota_partition\":\"jwt.sub={user}\"}}\n"
        )
    };
    let others: String = (0..9).map(|user| line(&format!("user{user}"), user)).collect();
    others + &line("alice", 10) + &line("alice", 11) + &line("alice", 12)
}

/// The text, compressed by gzip.
fn gzip(text: &str) -> Vec<u8> {
    piped(Command::new("gzip").arg("--stdout"), text.as_bytes()).stdout
}

fn advise(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.arg("advise").args(arguments);
    command
}

/// Runs the command with this input.
fn piped(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may have closed its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs the command, asserts its exit status, and returns both outputs.
fn ends(status: i32, arguments: &[&str]) -> (String, String) {
    let output = piped(&mut advise(arguments), b"");
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Writes files into a directory, and returns their paths.
fn write<const N: usize>(directory: &Path, files: [(&str, &[u8]); N]) -> [String; N] {
    files.map(|(name, bytes)| {
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn output_has_a_table_a_recommendation_and_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log().as_bytes())]);
    let (out, err) = ends(0, &[&file]);
    assert!(out.starts_with("12 requests of 10 users in 10 user-windows of 1m, from "), "{out}");
    assert!(out.contains(">  ") && out.contains("Recommended: 3 per 1m."), "{out}");
    assert!(out.contains("  - name: per-caller\n") && out.contains("    mode: shadow # "), "{out}");
    // Without a terminal there is no progress bar.
    assert_eq!(err, "");
}

#[test]
fn json_has_candidates_and_the_recommendation() {
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log().as_bytes())]);
    let (out, err) = ends(0, &["--json", "--quota", "1,2", "--window", "10s", &file]);
    let advice: Value = serde_json::from_str(&out).unwrap();
    let window = &advice["windows"][0];
    assert_eq!((&advice["policy"], &window["window_s"]), (&"per-caller".into(), &10.into()));
    let quotas: Vec<_> =
        window["candidates"].as_array().unwrap().iter().map(|row| &row["quota"]).collect();
    assert_eq!(quotas, [1, 2, 3]);
    assert_eq!(
        (&window["recommended"]["quota"], &advice["read"]["requests"]),
        (&3.into(), &12.into())
    );
    assert_eq!(err, "");
}

#[test]
fn plot_writes_a_picture() {
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log().as_bytes())]);
    let plot = directory.path().join("quota.svg");
    let (out, _) = ends(0, &["--plot", plot.to_str().unwrap(), &file]);
    assert!(out.contains("Recommended: 3"), "{out}");
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
    let (_, err) = ends(2, &["--plot", "/nowhere/quota.svg", &file]);
    assert!(err.starts_with("quotagate: cannot write /nowhere/quota.svg: "), "{err}");
}

#[test]
fn standard_input_may_be_compressed() {
    for bytes in [log().into_bytes(), gzip(&log())] {
        let output = piped(&mut advise(&["--json", "-"]), &bytes);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
        let window = &advice["windows"][0];
        assert_eq!((&window["users"], &window["recommended"]["quota"]), (&10.into(), &3.into()));
    }
}

#[test]
fn windows_add_up_over_files() {
    let directory = tempfile::tempdir().unwrap();
    let log = log();
    let [one, two] = write(
        directory.path(),
        [("one.log", log.as_bytes()), ("two.log.gz", gzip(&log).as_slice())],
    );
    let (out, _) = ends(0, &[&one, &two]);
    assert!(out.contains("24 requests of 10 users in 10 user-windows"), "{out}");
    assert!(out.contains("Recommended: 6 per 1m."), "{out}");
}

#[test]
fn a_truncated_file_counts_up_to_the_cut_with_a_note() {
    let directory = tempfile::tempdir().unwrap();
    let packed = gzip(&log().repeat(5000));
    let [file] = write(directory.path(), [("access.log.gz", &packed[..packed.len() / 2])]);
    let (out, _) = ends(0, &[&file]);
    assert!(out.contains(&format!("{file} is truncated")), "{out}");
    assert!(out.contains("Recommended: "), "{out}");
}

#[test]
fn nothing_to_advise_on_ends_with_status_1() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = b"{\"time\":\"2026-01-31T12:00:00.000Z\",\"quota_partition\":null}\n";
    let [empty, nobody, some] = write(
        directory.path(),
        [("empty", b"".as_slice()), ("nobody", nobody), ("some", log().as_bytes())],
    );
    for (arguments, why) in [
        (vec![empty.as_str()], "no line was read"),
        (vec!["-"], "no line was read"),
        (vec![&nobody], "of 1 lines 1 have an empty field quota_partition: no policy counted them"),
        (vec!["--policy", "other", &some], "12 are of other policies or paths"),
    ] {
        let (out, err) = ends(1, &arguments);
        assert!(
            out.is_empty() && err.starts_with("quotagate: there is nothing to advise on: "),
            "{err}"
        );
        assert!(err.contains(why) && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn bad_flags_and_unreadable_files_end_with_status_2() {
    let directory = tempfile::tempdir().unwrap();
    let several = log() + &log().replace("per-caller", "other");
    let missing = directory.path().join("missing").to_str().unwrap().to_owned();
    let folder = directory.path().to_str().unwrap();
    let [log, several] =
        write(directory.path(), [("log", log().as_bytes()), ("several", several.as_bytes())]);
    for (arguments, why) in [
        (vec!["--window", "1", &log], "must be a duration from 1s to 366d"),
        (vec!["--window", "days", &log], "or one of minute, hour, day, week, month, year"),
        (vec!["--time-zone", "UTC", &log], "leave out --time-zone"),
        (
            vec!["--window", "day", "--time-zone", "Europe/Belrin", &log],
            "\"Europe/Belrin\" is no time zone: --time-zone takes a name such as UTC or \
             Europe/Berlin; similar names are Europe/Berlin",
        ),
        (vec!["--window", "1m,day", "--sliding", &log], "a calendar window does not slide"),
        (vec!["--memory", "1", &log], "must be a size of at least 1MiB"),
        (vec!["--max-users", "0", &log], "must be a percentage"),
        (vec!["--format", "%START_TIME", &log], "the operator at \"%START_TIME\" has no end"),
        (vec!["--nonsense", &log], "unexpected argument '--nonsense'"),
        (vec![&log, &missing], "cannot read "),
        (vec![folder], "cannot read "),
        (vec![&several], "choose one with --policy"),
        (vec![], "required"),
    ] {
        let (out, err) = ends(2, &arguments);
        assert!(out.is_empty() && err.contains(why), "{arguments:?}: {err}");
    }
}

#[test]
fn flags_select_windows_and_users() {
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log().as_bytes())]);
    let plot = directory.path().join("quota.svg");
    let plot = plot.to_str().unwrap();
    let (out, _) = ends(
        0,
        &[
            "--window",
            "1m,10s",
            "--window",
            "1h",
            "--show-users",
            "1",
            "--without-top",
            "1",
            "--plot",
            plot,
            &file,
        ],
    );
    for part in [
        "Windows of 10s: ",
        "Windows of 1m: ",
        "Windows of 1h: ",
        "  3  jwt.sub=alice (at 2026-01-31T12:00:00Z)",
        "Without the user with the largest window: 1 per 1m.",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    for window in ["10s", "1m", "1h"] {
        assert!(directory.path().join(format!("quota-{window}.svg")).exists(), "{window}");
    }
    let (out, _) = ends(0, &["--exclude", "jwt.sub=alice", &file]);
    assert!(
        out.contains("Recommended: 1 per 1m.")
            && out.contains("3 requests of jwt.sub=alice are excluded"),
        "{out}"
    );
    let (_, err) = ends(2, &["--show-users", "101", &file]);
    assert!(err.contains("101 is not in"), "{err}");
}

#[test]
fn windows_follow_the_calendar_or_slide() {
    let directory = tempfile::tempdir().unwrap();
    // Two requests before midnight in Berlin, and one after it.
    let times = ["22:59:58", "22:59:59", "23:00:01"];
    let line = |time: &str| {
        format!("{{\"time\":\"2026-01-31T{time}Z\",\"quota_partition\":\"jwt.sub=alice\"}}\n")
    };
    let [file] = write(directory.path(), [("log", times.map(line).concat().as_bytes())]);
    let plot = directory.path().join("quota.svg");
    let calendar = ["--window", "month,day,1m", "--time-zone", "europe/berlin"];
    let (out, _) = ends(0, &[&calendar[..], &["--plot", plot.to_str().unwrap(), &file]].concat());
    for part in [
        "Recommended: 2 per 1m.",
        "Recommended: 2 per day (Europe/Berlin).",
        "Recommended: 2 per month (Europe/Berlin).",
        "  - name: advised-day\n",
        "    window: {calendar: month, time_zone: Europe/Berlin}\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    for window in ["1m", "day", "month"] {
        assert!(directory.path().join(format!("quota-{window}.svg")).exists(), "{window}");
    }
    let (out, _) = ends(0, &["--window", "month", &file]);
    assert!(out.contains("Recommended: 3 per month (UTC)."), "{out}");
    let (out, _) = ends(0, &["--sliding", &file]);
    assert!(out.contains("Recommended: 3 per 1m (sliding)."), "{out}");
    assert!(out.contains("    window: 1m\n    sliding: true\n"), "{out}");
}

/// The log, the flags and the output of the example in a section of `docs/operate/advise.md`.
fn example(heading: &str) -> [&'static str; 3] {
    let page = include_str!("../../../../docs/operate/advise.md");
    let (_, section) = page.split_once(&format!("## {heading}\n")).unwrap();
    let block = |text: &'static str, fence: &str| {
        let (_, rest) = text.split_once(fence).unwrap();
        rest.split_once("```").unwrap()
    };
    let (log, after) = block(section, "```json\n");
    let (_, command) = after.split_once("`quotagate advise ").unwrap();
    let (flags, _) = command.split_once(" access.log`").unwrap();
    let (printed, _) = block(after, "```\n");
    [log, flags, printed]
}

#[test]
fn a_concurrency_limit_is_judged_by_the_durations_in_the_log() {
    let [log, flags, printed] = example("Concurrency limits");
    let directory = tempfile::tempdir().unwrap();
    let without = log.replace("\"duration\":", "\"took\":");
    let [file, without] =
        write(directory.path(), [("log", log.as_bytes()), ("without", without.as_bytes())]);
    let (out, _) = ends(0, &[flags, &file]);
    assert_eq!(printed.lines().count(), 9, "{printed}");
    for line in printed.lines() {
        assert!(out.contains(line), "{line}: {out}");
    }
    let (out, _) = ends(0, &[flags, &without]);
    assert!(out.contains("No request has a duration") && out.contains("%DURATION%"), "{out}");
    assert!(!out.contains("in_flight: "), "{out}");
    // Another field, and JSON.
    let (json, _) = ends(0, &["--json", "--in-flight=took", &without]);
    let advice: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(advice["in_flight"]["recommended"]["in_flight"], 2);
    assert_eq!(advice["in_flight"]["percentiles"][2]["requests"], 2);
    assert_eq!(advice["read"]["without_duration"], 1);
    // Without the flag, durations do not matter.
    let (out, _) = ends(0, &[&file]);
    assert!(!out.contains("at once") && !out.contains("duration"), "{out}");
}

#[test]
fn a_token_quota_is_judged_by_the_cost_in_the_log() {
    let [log, flags, printed] = example("Costs that are known afterwards");
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log.as_bytes())]);
    let (out, _) = ends(0, &flags.split(' ').chain([file.as_str()]).collect::<Vec<_>>());
    assert_eq!(printed.lines().count(), 2, "{printed}");
    for line in printed.lines() {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(out.contains("units above it"), "{out}");
    let (json, _) = ends(0, &["--json", "--cost-field", "cost", &file]);
    let advice: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(advice["read"]["without_cost"], 1);
}

#[test]
fn an_unknown_time_field_is_reported_with_the_known_fields() {
    let directory = tempfile::tempdir().unwrap();
    let [file] = write(directory.path(), [("access.log", log().as_bytes())]);
    let (_, err) = ends(2, &["--time-field", "when", &file]);
    assert!(err.contains("it has no field \"when\" for the time; its fields are \""), "{err}");
    assert!(
        err.contains("\"quota_partition\"") && err.contains("choose one with --time-field"),
        "{err}"
    );
}

#[test]
fn errors_about_other_files_show_the_expected_format() {
    let directory = tempfile::tempdir().unwrap();
    let [picture, random] = write(
        directory.path(),
        [
            ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\x1b[31m\n".as_slice()),
            ("broken.gz", b"\x1f\x8bnothing that was ever packed".as_slice()),
        ],
    );
    let (out, err) = ends(2, &[&picture]);
    assert!(out.is_empty() && err.contains("picture.png is not an access log"), "{err}");
    assert!(
        err.contains("{\"time\":\"2026-01-31T12:00:00.000Z\"") && err.contains("--key-field"),
        "{err}"
    );
    assert!(!err.contains('\u{1b}'), "{err}");
    let (_, err) = ends(2, &[&random]);
    assert!(err.contains("cannot read ") && err.contains("broken.gz"), "{err}");
}

/// Runs `quotagate advise FILE` on a terminal, which shows both outputs.
fn on_a_terminal(file: &str) -> String {
    let line = format!("{} advise {file}", env!("CARGO_BIN_EXE_quotagate"));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
    let output = piped(&mut script, b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_terminal_shows_progress_and_then_the_advice_alone() {
    let directory = tempfile::tempdir().unwrap();
    // Large enough to draw the bar more than once.
    let [file] = write(directory.path(), [("access.log", log().repeat(20_000).as_bytes())]);
    let seen = on_a_terminal(&file);
    let (bar, advice) = seen.rsplit_once("240,000 requests of").unwrap();
    assert!(bar.contains(" of 22.43 MiB, ") && bar.contains("/s, "), "{bar:?}");
    // Its line is cleared at the end.
    assert!(bar.matches(" left").count() > 1 && bar.ends_with("\r\u{1b}[2K"), "{bar:?}");
    assert!(advice.contains("Recommended: ") && !advice.contains(" left"), "{advice}");

    let (out, err) = ends(0, &[&file]);
    assert!(out.starts_with("240,000 requests of") && err.is_empty(), "{out}{err}");
}
