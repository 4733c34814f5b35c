//! The advisor against a computation that keeps and sorts everything, over random logs: out of
//! order, in several files, compressed, with requests without a user and malformed lines.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use quotagate_advise::{Error, Fields, Length, Limits, Options, advise};

use crate::brute::Brute;

const BEGIN_MS: u64 = 1_795_301_700_000;
const TEXT: &str = "[%START_TIME%] \"%REQ(:METHOD)% x\" %FILTER_STATE(wasm.quotagate.partition:PLAIN)% %FILTER_STATE(wasm.quotagate.policy:PLAIN)% %REQ(X-COST)%";

pub(crate) fn options(logs: Vec<PathBuf>) -> Options {
    Options {
        logs,
        fields: Fields { cost: Some("cost".to_owned()), ..Fields::default() },
        windows: vec![Length::Seconds(10)],
        limits: Limits { users: 0.1, windows: 0.05 },
        memory: 64 << 20,
        lateness_s: 3600,
        threads: 2,
        ..Options::default()
    }
}

/// A line of a log.
#[derive(Clone, Debug)]
enum Entry {
    Request { user: u8, at_ms: u64, cost: u32 },
    Unidentified(u64),
    Malformed(Vec<u8>),
}

fn entry() -> impl Strategy<Value = Entry> {
    let at = || 0..120_000_u64;
    prop_oneof![
        12 => (0..30_u8, at(), prop_oneof![8 => Just(1_u32), 1 => 1..5000_u32]).prop_map(|(user, at, cost)| Entry::Request {
            // A few users send far more requests than the others.
            user: (u16::from(user) * u16::from(user) / 30) as u8,
            at_ms: BEGIN_MS + at,
            cost,
        }),
        1 => at().prop_map(|at| Entry::Unidentified(BEGIN_MS + at)),
        1 => prop::collection::vec(any::<u8>().prop_filter("no line end", |byte| *byte != b'\n'), 1..20)
            .prop_filter("not blank, not compressed", |line| !line.trim_ascii().is_empty() && !b"\x1f(".contains(&line[0]))
            .prop_map(Entry::Malformed),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Json,
    Text,
}

fn written(entry: &Entry, format: Format) -> Vec<u8> {
    let time = |at: u64| {
        let seconds = at / 1000 - BEGIN_MS / 1000;
        format!("2026-11-21T22:{:02}:{:02}.{:03}Z", 55 + seconds / 60, seconds % 60, at % 1000)
    };
    // User 0 stands for all callers without an identity, who share a counter.
    let name =
        |user: u8, prefix: &str| if user == 0 { "-".to_owned() } else { format!("{prefix}{user}") };
    match (entry, format) {
        (Entry::Request { user, at_ms, cost }, Format::Json) => format!(
            "{{\"time\":\"{}\",\"quota_policy\":\"p\",\"quota_partition\":\"{}\",\"cost\":{cost}}}",
            time(*at_ms),
            name(*user, "jwt.sub=\\u0075")
        ),
        (Entry::Request { user, at_ms, cost }, Format::Text) => {
            format!("[{}] \"GET x\" {} p {cost}", time(*at_ms), name(*user, "jwt.sub=u"))
        }
        (Entry::Unidentified(at), Format::Json) => {
            format!("{{\"quota_partition\":null,\"time\":\"{}\"}}", time(*at))
        }
        (Entry::Unidentified(at), Format::Text) => format!("[{}] \"GET x\" - - -", time(*at)),
        (Entry::Malformed(line), _) => return line.clone(),
    }
    .into_bytes()
}

#[derive(Clone, Copy, Debug)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
    /// As from `cat a.gz b.gz`.
    TwoMembers,
}

fn pack(text: &[u8], packing: Packing) -> Vec<u8> {
    let gzip = |text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    };
    match packing {
        Packing::Plain => text.to_vec(),
        Packing::Gzip => gzip(text),
        Packing::Zstd => zstd::encode_all(text, 1).unwrap(),
        Packing::TwoMembers => {
            let (one, two) = text.split_at(text.len() / 2);
            [gzip(one), gzip(two)].concat()
        }
    }
}

/// Writes entries into as many logs as there are packings, by turns.
fn logs(directory: &Path, entries: &[Entry], format: Format, packings: &[Packing]) -> Vec<PathBuf> {
    let mut texts = vec![Vec::new(); packings.len()];
    for (index, entry) in entries.iter().enumerate() {
        let text = &mut texts[index % packings.len()];
        text.extend(written(entry, format));
        text.extend(b"\n");
    }
    let write = |(index, (text, packing)): (usize, (Vec<u8>, &Packing))| {
        let path = directory.join(format!("log-{index}"));
        fs::write(&path, pack(&text, *packing)).unwrap();
        path
    };
    texts.into_iter().zip(packings).enumerate().map(write).collect()
}

fn brute(entries: &[Entry], window_ms: u64) -> Brute {
    let request = |entry: &Entry| match entry {
        Entry::Request { user, at_ms, cost } => Some((u32::from(*user), at_ms / window_ms, *cost)),
        Entry::Unidentified(_) | Entry::Malformed(_) => None,
    };
    Brute::of(entries.iter().filter_map(request))
}

fn packing() -> impl Strategy<Value = Packing> {
    prop::sample::select(vec![Packing::Plain, Packing::Gzip, Packing::Zstd, Packing::TwoMembers])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn counts_equal_a_plain_computation(
        entries in prop::collection::vec(entry(), 0..400),
        text: bool,
        packings in prop::collection::vec(packing(), 1..4),
        threads in 1..4_usize,
    ) {
        let format = if text { Format::Text } else { Format::Json };
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(logs(directory.path(), &entries, format, &packings));
        options.threads = threads;
        if text {
            options.fields = Fields { format: Some(TEXT.to_owned()), cost: Some("REQ(X-COST)".to_owned()), ..Fields::default() };
        }
        let requests = entries.iter().filter(|entry| matches!(entry, Entry::Request { .. })).count();
        let advice = match advise(&options) {
            Ok(advice) => advice,
            Err(Error::Nothing(_)) => {
                prop_assert_eq!(requests, 0);
                return Ok(());
            }
            Err(Error::NoLog { .. }) => {
                prop_assert!(entries.iter().all(|entry| matches!(entry, Entry::Malformed(_))));
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        brute(&entries, 10_000).check(&advice);
        let count = |kind: fn(&Entry) -> bool| entries.iter().filter(|entry| kind(entry)).count() as u64;
        prop_assert_eq!(advice.read.requests, requests as u64);
        prop_assert_eq!(advice.read.malformed, count(|entry| matches!(entry, Entry::Malformed(_))));
        prop_assert_eq!(advice.read.not_counted, count(|entry| matches!(entry, Entry::Unidentified(_))));
        let readable = |log: usize| entries.iter().skip(log).step_by(packings.len()).any(|entry| !matches!(entry, Entry::Malformed(_)));
        let unreadable = (0..packings.len().min(entries.len())).filter(|log| !readable(*log)).count();
        prop_assert_eq!(advice.read.unreadable.len(), unreadable);
        let window = &advice.windows[0];
        prop_assert!(window.sample.is_none() && !window.rounded && window.late == 0);
    }

    #[test]
    fn hostile_bytes_are_never_fatal(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..4_usize, cut in 0..300_usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let good = written(&Entry::Request { user: 1, at_ms: BEGIN_MS, cost: 1 }, Format::Json);
        let text = [good.as_slice(), b"\n", &bytes, b"\n", &good].concat();
        let mut packed = match kind {
            0 => text,
            1 => pack(&text, Packing::Gzip),
            2 => pack(&text, Packing::Zstd),
            _ => [b"\x1f\x8b".as_slice(), &bytes].concat(),
        };
        if kind > 0 {
            packed.truncate(packed.len().saturating_sub(cut / 3));
        }
        fs::write(&path, packed).unwrap();
        let _ = advise(&options(vec![path]));
    }
}

/// Logs of two proxies for an hour, and rotated logs of a third.
#[test]
fn windows_add_up_over_logs_read_by_several_threads() {
    let directory = tempfile::tempdir().unwrap();
    let mut texts = vec![String::new(); 4];
    let mut entries = Vec::new();
    for step in 0..120_000_u64 {
        let at_ms = BEGIN_MS + step;
        let user = (step * step % 251) as u8;
        entries.push(Entry::Request { user, at_ms, cost: 1 });
        // One line in a thousand is late.
        let log = if step % 3 < 2 { (step % 3) as usize } else { 2 + usize::from(step > 60_000) };
        let line = String::from_utf8(written(entries.last().unwrap(), Format::Json)).unwrap();
        texts[log].push_str(&line.replace(
            "\"cost\"",
            "\"agent\":\"Mozilla/5.0 (X11; Linux x86_64) 0123456789\",\"cost\"",
        ));
        texts[log].push('\n');
    }
    // The later of the rotated logs is the first argument.
    texts.reverse();
    let paths: Vec<PathBuf> =
        (0..texts.len()).map(|log| directory.path().join(format!("{log}.log"))).collect();
    paths.iter().zip(&texts).for_each(|(path, text)| fs::write(path, text).unwrap());
    let mut options = options(paths);
    options.windows = vec![Length::Seconds(1)];
    options.lateness_s = 1;
    options.threads = 3;
    let advice = advise(&options).unwrap();
    brute(&entries, 1000).check(&advice);
    assert_eq!((advice.windows[0].late, &advice.windows[0].sample), (0, &None));
    // Windows that are closed early must have no more lines to come.
    options.memory = 512 << 10;
    let advice = advise(&options).unwrap();
    assert!(
        advice.windows[0].sample.is_some() && advice.windows[0].late == 0,
        "{:?}",
        advice.windows[0]
    );
}

#[test]
fn a_truncated_log_counts_up_to_the_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut");
    let entries: Vec<Entry> = (0..20_000)
        .map(|i| Entry::Request { user: (i % 7) as u8, at_ms: BEGIN_MS + i, cost: 1 })
        .collect();
    let text: Vec<u8> = entries
        .iter()
        .flat_map(|entry| [written(entry, Format::Json), b"\n".to_vec()].concat())
        .collect();
    for packing in [Packing::Gzip, Packing::Zstd] {
        let packed = pack(&text, packing);
        fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let advice = advise(&options(vec![path.clone()])).unwrap();
        let read = advice.read.requests;
        assert!(read > 1000 && read < 20_000, "{packing:?}: {read}");
        assert_eq!((advice.read.damaged.len(), advice.read.malformed), (1, 0));
        assert!(advice.text().contains("is truncated"), "{}", advice.text());
        brute(&entries[..read as usize], 10_000).check(&advice);
    }
}

#[test]
fn errors_about_other_files_show_the_expected_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("picture.png");
    fs::write(&path, b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR").unwrap();
    let error = advise(&options(vec![path.clone()])).unwrap_err();
    assert!(
        matches!(error, Error::NoLog { .. }) && error.to_string().contains("quota_partition"),
        "{error}"
    );
    fs::write(&path, b"").unwrap();
    assert!(matches!(advise(&options(vec![path.clone()])), Err(Error::Nothing(_))));
    let missing = options(vec![directory.path().join("missing")]);
    assert!(matches!(advise(&missing), Err(Error::Unreadable { .. })));
    assert!(matches!(
        advise(&options(vec![directory.path().to_owned()])),
        Err(Error::Unreadable { .. })
    ));
}

/// Such as the messages of Envoy at its start, or a line that another process truncated.
#[test]
fn an_unreadable_log_does_not_stop_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let (log, nonsense) = (directory.path().join("log"), directory.path().join("nonsense"));
    let line = written(&Entry::Request { user: 1, at_ms: BEGIN_MS, cost: 1 }, Format::Json);
    // More than one chunk of it, then a request.
    let begin = "[info] starting main dispatch loop\n".repeat(100_000);
    fs::write(&log, [begin.as_bytes(), &line].concat()).unwrap();
    fs::write(&nonsense, "user\u{1b}:1").unwrap();
    let advice = advise(&options(vec![nonsense.clone(), log])).unwrap();
    assert_eq!((advice.read.requests, advice.read.malformed), (1, 100_001));
    assert_eq!(advice.read.unreadable, [nonsense.display().to_string()]);
    assert!(advice.text().contains(&format!("no line of {} can be read", nonsense.display())));
    let error = advise(&options(vec![nonsense])).unwrap_err();
    assert!(
        error.to_string().contains("has no %FILTER_STATE(wasm.quotagate.partition:PLAIN)%"),
        "{error}"
    );
}

#[test]
fn requests_of_several_policies_need_a_choice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let line = String::from_utf8(written(
        &Entry::Request { user: 1, at_ms: BEGIN_MS, cost: 1 },
        Format::Json,
    ))
    .unwrap();
    fs::write(&path, format!("{line}\n{}\n", line.replace("\"p\"", "\"q\""))).unwrap();
    let mut options = options(vec![path]);
    let error = advise(&options).unwrap_err();
    assert!(matches!(&error, Error::SeveralPolicies(..)), "{error}");
    options.only.policy = Some("q".to_owned());
    let advice = advise(&options).unwrap();
    assert_eq!((advice.read.requests, advice.read.not_selected), (1, 1));
}
