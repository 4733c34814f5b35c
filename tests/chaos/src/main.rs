//! `cargo xtask chaos`: faults under load, as a Markdown table.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use quotagate_chaos::fault::Fault;
use quotagate_chaos::plan::Plan;
use quotagate_chaos::{crowd, faults, report};

/// Injects faults into a running system under load, and prints what came of them
#[derive(Debug, Parser)]
#[command(name = "quotagate-chaos", version)]
struct Arguments {
    /// Only these faults
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Seconds of load before, during and after each fault
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The same seed draws the same moments and victims
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One short round each, as the tests run it
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// No faults: so many made-up identities instead, and what they cost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10_000..))]
    crowd: Option<u64>,
    /// The names of all faults
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> Result<()> {
    if let Some(identities) = arguments.crowd {
        return gather(identities);
    }
    let chosen = arguments.faults()?;
    if arguments.list {
        chosen.iter().for_each(|fault| println!("{:<28} {}", fault.name, fault.injected));
        return Ok(());
    }
    let plan = if arguments.quick {
        Plan::short(arguments.seed)
    } else {
        Plan::long(arguments.seconds, arguments.seed)
    };
    let begun = Instant::now();
    let (mut rows, mut broken) = (Vec::new(), Vec::new());
    for fault in &chosen {
        eprintln!("==> {}: {}", fault.name, fault.injected);
        match fault.findings(&plan) {
            Ok(findings) => {
                let row = report::row(fault, &findings);
                eprintln!("    {row}");
                rows.push(row);
                broken
                    .extend(findings.faults(&fault.bounds, &plan).iter().map(|text| complaint(fault, text)));
            }
            Err(error) => broken.push(complaint(fault, &format!("{error:#}"))),
        }
    }
    println!("{}\n{}", report::HEAD, rows.join("\n"));
    println!("\n{} faults in {:.0} s", chosen.len(), begun.elapsed().as_secs_f64());
    if broken.is_empty() { Ok(()) } else { bail!("{}", broken.join("\n")) }
}

/// Prints each row as it comes.
fn gather(identities: u64) -> Result<()> {
    println!("{}", crowd::HEAD);
    let crowd = crowd::run(identities, 2, |row| println!("{row}"))?;
    println!("\n{} of the crowd's requests were answered 503: not counted in time", crowd.unavailable);
    let faults = crowd.faults();
    if faults.is_empty() { Ok(()) } else { bail!("{}", faults.join("\n")) }
}

fn complaint(fault: &Fault, text: &str) -> String {
    let complaint = format!("{}: {text}", fault.name);
    eprintln!("    BROKEN {complaint}");
    complaint
}

impl Arguments {
    fn faults(&self) -> Result<Vec<Fault>> {
        if self.only.is_empty() {
            return Ok(faults::all());
        }
        let find = |name: &String| match faults::named(name) {
            Some(fault) => Ok(fault),
            None => bail!("--only {name}: there is no such fault; `--list` names them"),
        };
        self.only.iter().map(find).collect()
    }
}
