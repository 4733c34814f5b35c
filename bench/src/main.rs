//! `cargo xtask bench`: what a request costs with this filter, with others, and with none.
//!
//! Every stack is one Envoy worker in front of the same upstream process. All parts start at the
//! beginning and idle until it is their turn. In each round every load goes to every stack in turn
//! (A B C ... A B C ...), after a second of warm-up. Comparisons stay within a round. A measurement
//! is repeated if other programs used the machine meanwhile. A wrong response ends the run.

mod instructions;
mod measure;
mod micro;
mod plan;
mod report;
mod rig;
mod service;
mod session;
mod stacks;

use std::{
    cell::Cell,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use clap::Parser;
use quotagate_support::{paths, process, store::StoreProcess, tools};
use quotagate_workspace::task;

use measure::{cpu, load::Wrk, machine::Circumstances};
use plan::BenchArgs;
use report::table::Memory;
use rig::{Filters, Rig, Running};
use service::parts::ServiceParts;
use session::Session;
use stacks::Stack;

/// Measure what a request costs with the filter, with others, and with none
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", version)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    task::ended(perform(&Cli::parse().bench).map(|()| ExitCode::SUCCESS))
}

fn perform(arguments: &BenchArgs) -> Result<()> {
    if arguments.micro {
        return micro::run();
    }
    let services = ServiceParts::new(arguments.original.as_deref())?;
    if arguments.service && arguments.instructions {
        println!("\n{}", service::instructions(&services)?);
        return Ok(());
    }
    if arguments.instructions {
        return instructions::run(arguments, |stacks| filters(stacks, services));
    }
    cpu::machine().context("this task reads /proc: it needs Linux")?;
    let plan = arguments.plan()?;
    let wrk = tools::wrk()?;
    let circumstances = Circumstances::of(&wrk)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))
        .context("cannot listen for Ctrl-C")?;

    process::raise_file_limit()?;
    let alone = arguments.service.then(|| service::run(&services, &interrupted)).transpose()?;
    let filters = filters(&plan.stacks, services)?;
    task::step("bench: starting the parts");
    let rig = Rig::start(&plan.stacks, &filters)?;
    let minutes = plan.time().as_secs().div_ceil(60);
    task::step(&format!("bench: {} measurements, {minutes} min on a quiet machine", plan.len()));
    let patience = Cell::new(plan.patience);
    let session = Session { rig: &rig, wrk: Wrk::new(wrk)?, patience, interrupted: &interrupted };
    let measured = session.measure(&plan)?;
    let memory = rig.stacks().iter().map(memory).collect::<Result<Vec<_>>>()?;
    match alone {
        Some(alone) => report::write_service(&plan, &alone, &measured, &memory, &circumstances),
        None => report::write(&plan, &measured, &memory, &circumstances),
    }
}

/// The filters of these stacks. Builds those that only this task needs.
fn filters(stacks: &[Stack], services: ServiceParts) -> Result<Filters> {
    let needs = |some: &[Stack]| stacks.iter().any(|stack| some.contains(stack));
    let build = |flag, filter| {
        task::visibly(task::cargo().args(["xtask", "build", flag]))?;
        anyhow::Ok(filter)
    };
    let unbatched =
        needs(&[Stack::H]).then(|| build("--unbatched", paths::unbatched_filter())).transpose()?;
    let without_logic = needs(&[Stack::K, Stack::L])
        .then(|| build("--without-logic", paths::filter_without_logic()))
        .transpose()?;
    Ok(Filters { shipped: paths::filter(), unbatched, without_logic, services })
}

fn memory(running: &Running) -> Result<Memory> {
    Ok(Memory {
        title: format!("{} {}", running.stack, running.stack.title()),
        envoy: cpu::resident(running.envoy.pid())?,
        store: running.store.as_ref().map(StoreProcess::pid).map(cpu::resident).transpose()?,
    })
}
