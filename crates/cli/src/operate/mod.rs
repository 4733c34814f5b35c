//! The commands that call the admin address of a running store.
//!
//! Data goes to standard output, words about it to standard error. Exit status: 0 done, 1 refused
//! or not found, 2 the command is wrong, 3 no store answered, or the store cannot reach Redis.

mod change;
mod client;
mod digest;
mod display;
mod failure;
mod look;
mod partition;
mod session;

use std::process::ExitCode;

pub(crate) use change::document::CONTROLLER_NOTE;
pub(crate) use client::{AdminAddr, Client, Token, user_at_host};
pub(crate) use failure::Failure;

use change::{dial, document, overrides, release, reset};
use look::{domains, history, top, usage, why};

/// One of these commands.
#[derive(clap::Subcommand)]
pub(crate) enum Operation {
    /// Change a policy on the running fleet within 10 s, without a new configuration
    Dial(dial::DialArgs),
    /// Publish policy documents, which proxies take up without an update of their listeners
    Document(document::DocumentArgs),
    /// Set a runtime override for one partition of a policy: another quota, unlimited or blocked
    Override(overrides::OverrideArgs),
    /// Show how much of each policy's quota a partition has used
    Usage(usage::UsageArgs),
    /// Print a partition with the digests of its secrets, as overrides of a policy document name it
    Digest(digest::DigestArgs),
    /// Say which policies refuse a partition now, or would, since when, and which command helps
    Why(why::WhyArgs),
    /// Delete the counter of a partition, so that its quota starts afresh
    Reset(reset::ResetArgs),
    /// Free the slots that requests of a partition hold, for a proxy that is dead or cut off
    Release(release::ReleaseArgs),
    /// Show the partitions that are fullest, and those that are refused most
    Top(top::TopArgs),
    /// Show changes of dials, overrides and counters, newest first
    History(history::HistoryArgs),
    /// Show the domains that filters have reported, or forget one
    Domains(domains::DomainsArgs),
}

/// Runs a command to its end.
pub(crate) fn run(operation: &Operation) -> ExitCode {
    let done = match operation {
        Operation::Dial(args) => args.common.session(|session| dial::run(args, session)),
        Operation::Document(args) => args.common.session(|session| document::run(args, session)),
        Operation::Override(args) => args.common.session(|session| overrides::run(args, session)),
        Operation::Usage(args) => args.common.session(|session| usage::run(args, session)),
        Operation::Digest(args) => args.common.session(|session| digest::run(args, session)),
        Operation::Why(args) => args.common.session(|session| why::run(args, session)),
        Operation::Reset(args) => args.common.session(|session| reset::run(args, session)),
        Operation::Release(args) => args.common.session(|session| release::run(args, session)),
        Operation::Top(args) => args.common.session(|session| top::run(args, session)),
        Operation::History(args) => args.common.session(|session| history::run(args, session)),
        Operation::Domains(args) => args.common.session(|session| domains::run(args, session)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
