//! The commands on a terminal, which `script` provides.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quotagate_support::wait;
use serde_json::json;

use super::fleet::{Done, Fleet, PATIENCE};

/// Runs `quotagate ARGUMENTS` on a terminal, and types this after the prompt.
pub(super) fn typed(
    fleet: &Fleet,
    arguments: &str,
    prompt: &str,
    keys: &str,
    variables: &[(&str, &str)],
) -> Done {
    type_when(fleet, arguments, (prompt, Echo::On), keys, variables, || {})
}

/// The same, and does something between the prompt and the keys.
pub(super) fn typed_after(
    fleet: &Fleet,
    arguments: &str,
    prompt: &str,
    keys: &str,
    act: impl FnOnce(),
) -> Done {
    type_when(fleet, arguments, (prompt, Echo::On), keys, &[], act)
}

/// Whether the terminal shows typed text.
#[derive(Clone, Copy, PartialEq)]
enum Echo {
    On,
    Off,
}

/// The same, after the terminal has switched its echo on or off.
fn type_when(
    fleet: &Fleet,
    arguments: &str,
    (prompt, silent): (&str, Echo),
    keys: &str,
    variables: &[(&str, &str)],
    act: impl FnOnce(),
) -> Done {
    let mut command = Command::new("script");
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_quotagate"));
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.env_remove("NO_COLOR").env("TERM", "xterm").env("QUOTAGATE_ADMIN", fleet.admin());
    command.envs(variables.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut out = Vec::new();
    let mut some = [0; 4096];
    while !String::from_utf8_lossy(&out).contains(prompt) {
        let read = output.read(&mut some).unwrap();
        assert!(read > 0, "no prompt: {:?}", String::from_utf8_lossy(&out));
        out.extend_from_slice(&some[..read]);
    }
    if silent == Echo::Off {
        wait::until_true("the terminal shows nothing", PATIENCE, || Ok(is_silent(child.id())))
            .unwrap();
    }
    act();
    input.write_all(keys.as_bytes()).unwrap();
    output.read_to_end(&mut out).unwrap();
    let status = child.wait().unwrap().code().unwrap();
    Done { status, out: String::from_utf8(out).unwrap(), err: String::new() }
}

/// Whether the terminal of a descendant of this process has its echo off.
fn is_silent(script: u32) -> bool {
    let children =
        fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).any(|pid: u32| {
        let terminal = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap_or_default();
        let said = Command::new("stty").arg("-a").arg("-F").arg(terminal).output().unwrap();
        String::from_utf8_lossy(&said.stdout).split([' ', ';']).any(|word| word == "-echo")
            || is_silent(pid)
    })
}

#[test]
fn reset_asks_for_confirmation() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    for keys in ["n\n", "\n"] {
        let no = typed(&fleet, "reset per-caller jwt.sub=alice", "[y/N]", keys, &[]);
        assert!(
            no.status == 1 && no.out.contains("has used 10 of 10 units of per-caller"),
            "{no:?}"
        );
        assert!(no.out.contains("nothing was changed"), "{no:?}");
    }
    assert_eq!(fleet.reserve("per-caller", "jwt.sub=alice", 10, 1)["granted"], json!(0));
    let yes = typed(&fleet, "reset per-caller jwt.sub=alice", "[y/N]", "y\n", &[]);
    assert_eq!(yes.status, 0, "{yes:?}");
    assert_eq!(fleet.reserve("per-caller", "jwt.sub=alice", 10, 1)["granted"], json!(1));
}

#[test]
fn reset_suggests_a_name_for_an_unknown_policy() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    for partition in ["jwt.sub=alice", "jwt.sub=bob"] {
        let wrong = typed(&fleet, &format!("reset per-calle {partition}"), "", "", &[]);
        assert!(wrong.status == 1 && wrong.out.contains("Did you mean per-caller?"), "{wrong:?}");
    }
    let none = typed(&fleet, "reset per-key jwt.sub=alice", "", "", &[]);
    assert!(none.status == 1 && none.out.contains("there is nothing to reset"), "{none:?}");
}

#[test]
fn only_capable_terminals_get_colours() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    assert!(typed(&fleet, "top", "", "", &[]).out.contains("\u{1b}[31m"));
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = typed(&fleet, "top", "", "", &[variable]);
        assert!(plain.out.contains("jwt.sub=alice") && !plain.out.contains('\u{1b}'), "{plain:?}");
    }
    assert!(!fleet.done(&["top"]).out.contains('\u{1b}'));
}

/// `quotagate top --watch` on a terminal of this size, which a test types into.
struct Watching {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    out: String,
}

impl Watching {
    fn start(fleet: &Fleet, rows: usize, columns: usize, flags: &str) -> Self {
        let watch = format!("{} top --watch {flags}", env!("CARGO_BIN_EXE_quotagate"));
        let line = format!("stty rows {rows} cols {columns}; {watch}");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        command.env("TERM", "xterm").env("NO_COLOR", "1").env("QUOTAGATE_ADMIN", fleet.admin());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output, out: String::new() }
    }

    /// Types these keys, and reads until the terminal gets this text after them.
    fn press(&mut self, keys: &str, shown: &str) -> &mut Self {
        self.out.clear();
        self.input.write_all(keys.as_bytes()).unwrap();
        let mut some = [0; 4096];
        while !self.out.contains(shown) {
            let read = self.output.read(&mut some).unwrap();
            assert!(read > 0, "{shown} is not in {:?}", self.out);
            self.out.push_str(&String::from_utf8_lossy(&some[..read]));
        }
        self
    }

    /// The status, and what the terminal gets in the end.
    fn ended(mut self) -> (i32, String) {
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).unwrap();
        let out = self.out + &String::from_utf8_lossy(&rest);
        (self.child.wait().unwrap().code().unwrap(), out)
    }
}

#[test]
fn top_watch_filters_sorts_opens_and_gives_the_terminal_back() {
    let fleet = Fleet::memory();
    for n in 0..20 {
        let partition = format!("jwt.sub=n{n:02}");
        fleet.reserve("per-caller", &partition, 10, 10);
        assert_eq!(fleet.reserve("per-caller", &partition, 10, 1)["granted"], json!(0));
    }
    let mut watching = Watching::start(&fleet, 24, 100, "--interval 1s");
    // Only cells that change are drawn, so these are single words that no word before overlaps.
    watching.press("", "leave").press("/n17\r", "clears");
    watching.press("s", "full");
    watching.press("\r", "override").press("x", "clears");
    watching.press("q", "\u{1b}[?1049l");
    let (status, out) = watching.ended();
    assert_eq!(status, 0, "{out:?}");
}

#[test]
fn top_watch_ends_with_the_stores_answer_and_at_ctrl_c() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    let mut watching = Watching::start(&fleet, 12, 40, "");
    watching.press("", "alice").press("\x03", "\u{1b}[?1049l");
    assert_eq!(watching.ended().0, 0);
    let refused = typed(&fleet, "top --watch --policy per-calle", "", "", &[]);
    assert!(refused.status == 1 && !refused.out.contains("1049"), "{refused:?}");
    let dumb = typed(&fleet, "top --watch", "", "", &[("TERM", "dumb")]);
    assert!(dumb.status == 2 && dumb.out.contains("draws on a terminal"), "{dumb:?}");
}

#[test]
fn json_is_indented_and_escaped_on_a_terminal() {
    let fleet = Fleet::memory();
    fleet.done(&["dial", "set", "per-key", "--quota", "1", "--by", "e\u{9b}31mvil"]);
    let list = typed(&fleet, "dial list --json", "", "", &[]);
    assert!(list.out.lines().count() > 10 && !list.out.contains('\u{9b}'), "{list:?}");
}

#[test]
fn a_secret_is_not_echoed() {
    let fleet = Fleet::memory();
    let digest = "~5bdcc146bf60754e6a042426089575c7";
    fleet.reserve("per-key", &format!("header.x-api-key={digest}"), 1000, 5);
    let secret = "what do ya want for nothing?";
    let key = [("QUOTAGATE_DIGEST_KEY", "Jefe")];
    let done = type_when(
        &fleet,
        "usage --secret header.x-api-key",
        ("(not shown)", Echo::Off),
        &format!("{secret}\n"),
        &key,
        || {},
    );
    assert!(done.status == 0 && done.out.contains("header.x-api-key (not shown): "), "{done:?}");
    assert!(done.out.contains(digest) && done.out.contains("per-key"), "{done:?}");
    assert!(!done.out.contains(secret), "{done:?}");
}
