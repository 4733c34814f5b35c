//! Runs the commands of a page of `docs/examples/`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use quotagate_support::paths;

/// The section with the commands.
const SECTION: &str = "\n## What you see\n";
/// What the script prints after each block of commands.
const END: &str = "-- end of the block --\n";
/// Where the examples listen.
const LISTENER: &str = "127.0.0.1:10000";

/// A block of commands, and what the page says that it prints.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    commands: String,
    printed: String,
}

/// The steps of a page: a block `text` is what the block `sh` before it prints.
fn steps(page: &str) -> Vec<Step> {
    let section = page.split_once(SECTION).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut steps: Vec<Step> = Vec::new();
    for block in section.split("\n```").skip(1).step_by(2) {
        let (language, content) = block.split_once('\n').unwrap_or_default();
        let content = format!("{content}\n");
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step { commands: content, printed: String::new() }),
            ("text", Some(step)) => step.printed = content,
            _ => panic!("a block of {language:?} is neither commands nor what they print"),
        }
    }
    steps
}

/// Without what depends on the time: how long a window is (`w=`) and until when it lasts (`t=`).
fn timeless(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = [";t=", ";w="].into_iter().filter_map(|field| rest.find(field)).min() {
        let (before, number) = rest.split_at(at + ";t=".len());
        plain.push_str(before);
        rest = number.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    plain + rest
}

/// Runs the commands of a page against an Envoy on this port, in one shell and from the root of the
/// source tree. Compares what each block prints.
pub fn follow(name: &str, port: u16) -> Result<()> {
    let page = fs::read_to_string(paths::root().join(format!("docs/examples/{name}.md")))?;
    let steps = steps(&page);
    ensure!(!steps.is_empty(), "{name}.md has no commands");
    let mut script = "set -u\n".to_owned();
    for step in &steps {
        script += &format!("{}printf '%s' '{END}'\n", step.commands);
    }
    let script = script.replace(LISTENER, &format!("127.0.0.1:{port}"));
    let mut shell = Command::new("bash");
    let output = shell.args(["-c", &script]).current_dir(paths::root()).output().context("bash")?;
    let printed = String::from_utf8(output.stdout)?.replace('\r', "");
    let errors = String::from_utf8_lossy(&output.stderr);
    let blocks: Vec<&str> = printed.split_terminator(END).collect();
    for (step, printed) in steps.iter().zip(&blocks) {
        assert_eq!(
            timeless(printed),
            timeless(&step.printed),
            "{name}.md: {}{errors}",
            step.commands
        );
    }
    assert_eq!(blocks.len(), steps.len(), "{name}.md: {errors}");
    Ok(())
}

#[test]
fn steps_are_commands_with_what_they_print() {
    let page = "# A\n\n```sh\nno\n```\n\n## What you see\n\nRun\n\n```sh\na\nb\n```\n\nIt prints\n\n\
                ```text\n1\n```\n\n```sh\nc\n```\n\n## Limits\n\n```sh\nno\n```\n";
    let step = |commands: &str, printed: &str| Step {
        commands: commands.to_owned(),
        printed: printed.to_owned(),
    };
    assert_eq!(steps(page), [step("a\nb\n", "1\n"), step("c\n", "")]);
    assert_eq!(timeless("\"a\";r=1;t=59, \"b\";q=2;w=60\n"), "\"a\";r=1;t=, \"b\";q=2;w=\n");
}
