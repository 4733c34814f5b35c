//! The report: `instructions.md`.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use quotagate_workspace::task;

use super::{
    CONNECTIONS, InstructionReport, LONE_REQUESTS, Measurement, Operation, REQUESTS, WARM_UP,
};
use crate::{
    measure::machine::Circumstances, plan::BenchArgs, report::table::number, stacks::Stack,
};

/// Prints the tables and writes them into the folder of the report.
pub fn write(arguments: &BenchArgs, measured: &InstructionReport) -> Result<()> {
    let InstructionReport { core: operations, stacks: measured } = measured;
    let tables = [
        "## A request\n".to_owned(),
        stacks(measured),
        "## Hooks\n".to_owned(),
        hooks(measured),
        "## Callbacks and allocations\n".to_owned(),
        callbacks(measured),
        "## The core alone\n".to_owned(),
        core(operations),
    ]
    .join("\n");
    println!("\n{tables}");
    let out = arguments.report(arguments.selects_stacks());
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let file = out.join("instructions.md");
    let preface = format!(
        "# Instructions of a request\n\n{}.\n\nWritten by `cargo xtask bench --instructions`. \
         Callgrind counts the instructions of Envoy in user space, with all its threads, from the \
         first request to the last answer: {REQUESTS} requests of one user over {} connections, \
         {LONE_REQUESTS} over one, after {WARM_UP} that are not counted. The machine's load \
         changes the figures by less than 0.5 %; those of the Wasm stacks vary by up to a tenth, \
         because V8 compiles beside the requests. [The bench](README.md) describes the stacks.\n",
        Circumstances::of(&quotagate_support::tools::instructions()?.1)?,
        CONNECTIONS[0],
    );
    fs::write(&file, format!("{preface}\n{tables}"))?;
    task::note(&format!("the report is {}", file.display()));
    Ok(())
}

fn thousands(count: f64) -> String {
    format!("{:.1} k", count / 1e3)
}

fn stacks(measured: &[Measurement]) -> String {
    let mut head = "| | stack |".to_owned();
    for connections in CONNECTIONS {
        head += &format!(" {} | above A |", number(connections, "connection"));
    }
    let mut lines = vec![head, format!("|---|---|{}", "---:|".repeat(2 * CONNECTIONS.len()))];
    let of = |stack, connections| {
        let is_of = |it: &&Measurement| (it.stack, it.connections) == (stack, connections);
        measured.iter().find(is_of).map(Measurement::each)
    };
    for stack in with_each_stack(measured) {
        let mut line = format!("| {stack} | {} |", stack.title());
        for connections in CONNECTIONS {
            let each = of(stack, connections);
            let base = of(Stack::A, connections).filter(|_| stack != Stack::A);
            let above = each.zip(base).map(|(each, base)| format!("{:+.1} k", (each - base) / 1e3));
            line += &format!(
                " {} | {} |",
                each.map(thousands).unwrap_or_default(),
                above.unwrap_or_default()
            );
        }
        lines.push(line);
    }
    let above = |stack| {
        let each = of(stack, CONNECTIONS[0])? - of(Stack::A, CONNECTIONS[0])?;
        Some(format!("{:.1} k", each / 1e3))
    };
    let floors = above(Stack::K).zip(above(Stack::L)).map(|(machine, calls)| {
        format!(
            "\nK and L are the floors of a Wasm filter: entering and leaving its machine costs \
             {machine}, and with the host calls of G it costs {calls} above A. What G costs above L \
             is the filter's own work.\n"
        )
    });
    lines.join("\n") + "\n" + &floors.unwrap_or_default()
}

fn with_each_stack(measured: &[Measurement]) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = measured.iter().map(|it| it.stack).collect();
    stacks.dedup();
    stacks
}

/// The native stacks over many connections.
fn native(measured: &[Measurement]) -> Vec<&Measurement> {
    let is_shown = |it: &&Measurement| it.stack.is_native() && it.connections == CONNECTIONS[0];
    measured.iter().filter(is_shown).collect()
}

fn hooks(measured: &[Measurement]) -> String {
    let native = native(measured);
    "Instructions for each request in each hook of the native module, with Envoy's work behind its\n\
     callbacks, over 32 connections. In `scheduled` Envoy also forwards the requests that waited.\n\n"
        .to_owned()
        + &table(&native, "hook", Measurement::hooks, |cost| format!("{cost:.0}"), None)
}

fn callbacks(measured: &[Measurement]) -> String {
    let native = native(measured);
    let allocations = native.iter().map(|it| it.of_each(it.counts.allocations)).collect();
    "How often the native module calls Envoy and takes memory for each request, over 32\n\
     connections.\n\n"
        .to_owned()
        + &table(
            &native,
            "callback",
            Measurement::callbacks,
            |count| format!("{count:.2}"),
            Some(("**memory allocations**", allocations)),
        )
}

fn core(operations: &[Operation]) -> String {
    let mut lines = vec![
        "The operations of the core in native code, without an adapter, on average over calls of each.\n"
            .to_owned(),
        "| operation | instructions | memory allocations |".to_owned(),
        "|---|---:|---:|".to_owned(),
    ];
    lines.extend(operations.iter().map(|Operation { name, instructions, allocations }| {
        format!("| {name} | {instructions:.0} | {allocations:.2} |")
    }));
    lines.join("\n") + "\n"
}

/// A table with a column for each measurement, and a row for each name.
fn table<'m, I: Iterator<Item = (&'m str, f64)>>(
    measured: &[&'m Measurement],
    what: &str,
    values: impl Fn(&'m Measurement) -> I,
    shown: impl Fn(f64) -> String,
    last: Option<(&str, Vec<f64>)>,
) -> String {
    let mut rows: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (column, measurement) in measured.iter().enumerate() {
        for (name, value) in values(measurement) {
            let row = rows.entry(name).or_insert_with(|| vec![0.0; measured.len()]);
            row.iter_mut().skip(column).take(1).for_each(|cell| *cell = value);
        }
    }
    let names: Vec<String> = measured.iter().map(|it| it.stack.to_string()).collect();
    let head = format!("| {what} | {} |", names.join(" | "));
    let mut lines = vec![head, format!("|---|{}", "---:|".repeat(names.len()))];
    let quoted = rows.into_iter().map(|(name, row)| (format!("`{name}`"), row));
    for (name, row) in quoted.chain(last.map(|(name, row)| (name.to_owned(), row))) {
        // What happens once in a thousand requests is a timer's.
        if row.iter().all(|value| *value < 0.005) {
            continue;
        }
        let cells: Vec<String> = row.into_iter().map(&shown).collect();
        lines.push(format!("| {name} | {} |", cells.join(" | ")));
    }
    lines.join("\n") + "\n"
}
