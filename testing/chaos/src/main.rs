//! `cargo xtask chaos`: faults under load, as a Markdown table.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use quotagate_chaos::crowd::{FEWEST, Form};
use quotagate_chaos::fault::Fault;
use quotagate_chaos::plan::Plan;
use quotagate_chaos::{crowd, faults, report};
use quotagate_support::{envoy, paths};

/// Seconds of a run that a page is made of, at least.
const FULL: u32 = 6;

/// Injects faults into a running system under load, and prints what came of them
#[derive(Debug, Parser)]
#[command(name = "quotagate-chaos", version)]
struct ChaosArguments {
    /// Only these faults
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Seconds of load before, during and after each fault
    #[arg(long, default_value_t = FULL, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The same seed draws the same moments and victims
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One short round each, as the tests run it
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// The page whose tables are replaced; by default docs/operate/reliability.md, where every
    /// fault of the Wasm form runs at full length
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// No faults: so many made-up identities instead, and what they cost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(FEWEST..))]
    crowd: Option<u64>,
    /// The names of all faults
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match perform(&ChaosArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &ChaosArguments) -> Result<()> {
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
    let page = arguments.page()?;
    let (begun, load) = (Instant::now(), busy());
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for fault in &chosen {
        eprintln!("==> {}: {}", fault.name, fault.injected);
        match fault.findings(&plan) {
            Ok(findings) => {
                eprintln!("    {}", report::row(fault, &findings));
                broken.extend(
                    findings.faults(&fault.bounds, &plan).iter().map(|text| complaint(fault, text)),
                );
                found.push((fault, findings));
            }
            Err(error) => broken.push(complaint(fault, &format!("{error:#}"))),
        }
    }
    let results: Vec<_> = found.iter().map(|(fault, findings)| (*fault, findings)).collect();
    let took = begun.elapsed().as_secs() / 60 + 1;
    let (count, seed) = (chosen.len(), plan.seed);
    let run = format!(
        "{count} faults in {took} minutes, seed {seed}, the machine's load at the start {load}."
    );
    let tables = format!("{run}\n\n{}", report::tables(&results));
    println!("{tables}");
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    if let Some((file, old)) = page {
        let new = report::page(&old, &tables);
        let new =
            new.with_context(|| format!("{} lacks the marks of the tables", file.display()))?;
        fs::write(&file, new).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("{} is written", file.display());
    }
    Ok(())
}

/// Prints each row as it comes.
fn gather(identities: u64) -> Result<()> {
    println!("{}", crowd::HEAD);
    let crowd = crowd::run(Form::Long(identities), |row| println!("{row}"))?;
    let (late, all) = (crowd.answers.unavailable, crowd.answers.all());
    println!("\n{late} of {all} requests were answered 503: not counted in time");
    let faults = crowd.faults();
    if faults.is_empty() { Ok(()) } else { bail!("{}", faults.join("\n")) }
}

/// The system's load average: a short timeout depends on it.
fn busy() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    format!("{} on {processors} processors", load.split(' ').next().unwrap_or("unknown"))
}

fn complaint(fault: &Fault, text: &str) -> String {
    let complaint = format!("{}: {text}", fault.name);
    eprintln!("    BROKEN {complaint}");
    complaint
}

impl ChaosArguments {
    /// The page to write and its text; `None` for a partial run.
    fn page(&self) -> Result<Option<(PathBuf, String)>> {
        let whole = self.only.is_empty() && !self.quick && self.seconds >= FULL;
        // The shipped page has the tables of this form.
        let of_wasm = envoy::Form::of_run()? == envoy::Form::Wasm;
        let file = match &self.report {
            Some(_) if !whole => {
                bail!("--report: only a run of all faults at full length makes a page")
            }
            Some(file) => file.clone(),
            None if whole && of_wasm => paths::root().join("docs/operate/reliability.md"),
            None => return Ok(None),
        };
        let old =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        // Checked now, not only after all faults have run.
        report::page(&old, "")
            .with_context(|| format!("{} lacks the marks of the tables", file.display()))?;
        Ok(Some((file, old)))
    }

    fn faults(&self) -> Result<Vec<Fault>> {
        if self.only.is_empty() {
            return faults::of_run();
        }
        let form = envoy::Form::of_run()?;
        let find = |name: &String| match faults::named(name) {
            Some(fault) if fault.only.is_some_and(|only| only != form) => {
                bail!("--only {name}: the form {} cannot suffer this fault", form.name())
            }
            Some(fault) => Ok(fault),
            None => bail!("--only {name}: there is no such fault; `--list` names them"),
        };
        self.only.iter().map(find).collect()
    }
}
