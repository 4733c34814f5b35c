//! `quotagate dial`: what is turned on the running fleet.

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use hyper::Method;
use quotagate_quota::protocol::dials::ALL_POLICIES;
use quotagate_quota::protocol::{Mode, OnFailure};
use quotagate_store::api::{self, Board, Changed, ClearDial, DialEntry, PolicyInfo, SetDial};

use super::failure::Failure;
use super::output::say;
use super::table::{Table, Weight};
use super::undo::{Before, dialled, note, until};
use super::words::{count, duration, mode, number, on_failure};
use super::{Common, Session, for_ms, units};

/// The flags of `quotagate dial`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show every policy that filters have told of, and what is dialled
    List,
    /// Turn a dial: what is not named stays as it was turned before
    Set(Set),
    /// Clear a dial: the configuration holds again
    Clear(Clear),
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("dialled").args(["mode", "quota", "on_failure"]).required(true).multiple(true)))]
struct Set {
    /// The name of a policy, or * for all
    policy: String,
    /// enforce: refuse what is over the quota; shadow: count, never refuse; off: neither
    #[arg(long, value_parser = modes())]
    mode: Option<Mode>,
    /// Units a window, in place of the policy's quota, tiers and quota_from; 0 is nobody
    #[arg(long, value_name = "N", value_parser = units)]
    quota: Option<u64>,
    /// What becomes of requests while the store fails
    #[arg(long, value_parser = failures())]
    on_failure: Option<OnFailure>,
    /// After this time the whole dial reverts by itself: 30m, 1h, 7d [default: it stays until it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = for_ms)]
    for_ms: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Clear {
    /// The name of a policy, or *
    policy: String,
}

fn modes() -> impl clap::builder::TypedValueParser<Value = Mode> {
    let all = [Mode::Enforce, Mode::Shadow, Mode::Off];
    // The parser lets no other word through.
    let of = move |word: String| all.into_iter().find(|m| mode(*m) == word).unwrap_or(Mode::Enforce);
    PossibleValuesParser::new(all.map(mode)).map(of)
}

fn failures() -> impl clap::builder::TypedValueParser<Value = OnFailure> {
    let all = [OnFailure::Allow, OnFailure::Deny, OnFailure::Local];
    let of = move |word: String| all.into_iter().find(|f| on_failure(*f) == word).unwrap_or(OnFailure::Allow);
    PossibleValuesParser::new(all.map(on_failure)).map(of)
}

/// Runs one of them.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    match &args.command {
        Command::List => list(&session).await,
        Command::Set(args) => set(args, &session).await,
        Command::Clear(args) => clear(&args.policy, &session).await,
    }
}

async fn set(args: &Set, session: &Session) -> Result<(), Failure> {
    if args.policy == ALL_POLICIES && args.quota.is_some() {
        return Err(Failure::Usage("--quota is for one policy: name it in place of *".to_owned()));
    }
    let change = SetDial {
        domain: session.client.domain.clone(),
        policy: args.policy.clone(),
        mode: args.mode,
        quota: args.quota,
        on_failure: args.on_failure,
        for_ms: args.for_ms,
        by: session.by.clone(),
    };
    if session.output.json {
        let answer = session.client.change(Method::PUT, api::DIALS, &change).await?;
        return session.changed(&answer);
    }
    // Whatever is wrong with asking, the change itself tells of it.
    let boards = session.client.boards().await.ok().map(|answer| answer.value);
    let answer = session.client.change::<Changed>(Method::PUT, api::DIALS, &change).await?;
    session.changed(&answer)?;
    let domain = &answer.value.domain;
    let board = boards.as_ref().map(|boards| boards.iter().find(|board| board.domain == *domain));
    let dials = board.map(|board| board.into_iter().flat_map(|board| board.dials.iter().cloned()));
    let before = Before::found(dials, |dial| dial.policy == args.policy);
    let mut policies = board.flatten().into_iter().flat_map(|board| &board.policies);
    meaning(args, policies.find(|policy| policy.name == args.policy));
    match args.for_ms {
        Some(ms) => {
            say(&format!("It reverts by itself in {}, the whole dial of {}.", duration(ms), args.policy))
        }
        None => say("It stays until it is cleared."),
    }
    session.durability(&answer.value);
    undo(args, &before, session);
    Ok(())
}

/// Says what was dialled before, what of it stays, and the command that restores it.
fn undo(args: &Set, before: &Before<DialEntry>, session: &Session) {
    let clear = session.command(&["dial", "clear", &args.policy]);
    let was = match before {
        Before::Was(was) => was,
        Before::Nothing => return say(&format!("Undo it: {clear}")),
        Before::Unknown => {
            return say(&format!(
                "What was dialled before is not known: see `quotagate history`. Clear all of it: {clear}"
            ));
        }
    };
    let fields = dialled(was);
    let words = |of: &mut dyn Iterator<Item = &(&str, String, String)>| {
        of.map(|(_, _, words)| words.as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_named = |flag: &str| match flag {
        "--mode" => args.mode.is_some(),
        "--quota" => args.quota.is_some(),
        _ => args.on_failure.is_some(),
    };
    say(&format!(
        "Before, {} had dialled {}, {}.",
        was.by,
        words(&mut fields.iter()),
        until(was.remaining_ms)
    ));
    let kept = words(&mut fields.iter().filter(|(flag, ..)| !is_named(flag)));
    if !kept.is_empty() {
        let time = if args.for_ms.is_some() { ", for the same time" } else { "" };
        say(&format!("What was dialled before stays too{time}: {kept}."));
    }
    let is_new = (args.mode.is_some() && was.mode.is_none())
        || (args.quota.is_some() && was.quota.is_none())
        || (args.on_failure.is_some() && was.on_failure.is_none());
    let again = session.redial(was, &fields);
    let note = note(was.remaining_ms);
    // What was not dialled before goes only with the whole dial.
    let whole = if is_new { format!("{clear} && {again}") } else { again };
    say(&format!("Undo it{note}: {whole}"));
}

/// Says what will be otherwise, of a policy where it is known.
fn meaning(args: &Set, policy: Option<&PolicyInfo>) {
    say("Every proxy with traffic has it within 10 s. What it changes:");
    match args.mode {
        Some(Mode::Enforce) => say("  mode: requests over the quota are refused"),
        Some(Mode::Shadow) => say("  mode: requests are counted, and none is refused"),
        Some(Mode::Off) => say("  mode: requests are neither counted nor refused"),
        None => {}
    }
    if let Some(quota) = args.quota {
        say(&format!(
            "  quota: {} a window for {}, counted over all proxies; what is used counts, overrides stay",
            count(quota, "unit", "units"),
            shared(policy)
        ));
        if policy.is_some_and(|policy| policy.tiers) {
            say("  this replaces the policy's tiers and quota_from: a larger quota by them is lost");
        }
    }
    match args.on_failure {
        Some(OnFailure::Allow) => say("  on_failure: while the store fails, requests pass uncounted"),
        Some(OnFailure::Deny) => say("  on_failure: while the store fails, requests get 503"),
        Some(OnFailure::Local) => say("  on_failure: while the store fails, each worker counts for itself"),
        None => {}
    }
}

/// Who shares one counter of a policy.
fn shared(policy: Option<&PolicyInfo>) -> String {
    match policy.and_then(|policy| policy.partition_by.as_deref()) {
        Some([]) => "everybody together".to_owned(),
        Some(entries) => {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            format!("each {}", names.join(" and "))
        }
        None => "each partition".to_owned(),
    }
}

async fn clear(policy: &str, session: &Session) -> Result<(), Failure> {
    let change = ClearDial {
        domain: session.client.domain.clone(),
        policy: policy.to_owned(),
        by: session.by.clone(),
    };
    let answer = session.client.change::<Changed>(Method::DELETE, api::DIALS, &change).await?;
    session.changed(&answer)?;
    if !session.output.json {
        say("Every proxy with traffic goes by its configuration again within 10 s.");
    }
    Ok(())
}

async fn list(session: &Session) -> Result<(), Failure> {
    let answer = session.client.boards().await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    if answer.value.is_empty() {
        say("No filter has told of its policies yet: each does with its first requests, and then every 5 s.");
        return Ok(());
    }
    for board in &answer.value {
        let kept = if board.durable { "kept in Redis" } else { "kept in this store's memory only" };
        session.output.sentence(&format!(
            "{}: {}, {}, {} ({kept})",
            board.domain,
            count(board.policies.len() as u64, "policy", "policies"),
            count(board.dials.len() as u64, "dial", "dials"),
            count(board.overrides, "override", "overrides"),
        ))?;
        session.output.print(&table(board).render(session.output.colour))?;
        if board.dials.is_empty() {
            say("Nothing is dialled: `quotagate dial set POLICY --quota N --for 1h` would.");
        }
    }
    Ok(())
}

/// One row for each policy as it is in force, and one for each dial of another name, such as that of all policies.
fn table(board: &Board) -> Table {
    let mut table =
        Table::new(&["policy", "quota", "window", "mode", "on_failure", "dial ends", "dialled by"], &[1, 2]);
    let dial_of = |name: &str| board.dials.iter().find(|dial| dial.policy == name);
    let all = dial_of(ALL_POLICIES);
    for policy in &board.policies {
        let own = dial_of(&policy.name);
        // The policy's own dial comes first, field by field.
        let (new_mode, mode_of_all) = first(own.and_then(|own| own.mode), all.and_then(|all| all.mode));
        let (new_failure, failure_of_all) =
            first(own.and_then(|own| own.on_failure), all.and_then(|all| all.on_failure));
        let all = all.filter(|_| mode_of_all || failure_of_all);
        let both = |of: fn(&DialEntry) -> String| {
            let own = own.map(of);
            own.into_iter().chain(all.map(of).map(of_all)).collect::<Vec<_>>().join(", ")
        };
        let row = [
            policy.name.clone(),
            turned(own.and_then(|own| own.quota).map(number), number(policy.quota), false),
            duration(u64::from(policy.window_s) * 1000),
            turned(new_mode.map(|m| mode(m).to_owned()), mode(policy.mode).to_owned(), mode_of_all),
            turned(
                new_failure.map(|f| on_failure(f).to_owned()),
                on_failure(policy.on_failure).to_owned(),
                failure_of_all,
            ),
            both(ends),
            both(|dial| dial.by.clone()),
        ];
        table.row(if own.or(all).is_some() { Weight::Notable } else { Weight::Plain }, row);
    }
    let known = |name: &str| board.policies.iter().any(|policy| policy.name == name);
    for dial in board.dials.iter().filter(|dial| !known(&dial.policy)) {
        let row = [
            dial.policy.clone(),
            dial.quota.map(number).unwrap_or_default(),
            String::new(),
            dial.mode.map(mode).unwrap_or_default().to_owned(),
            dial.on_failure.map(on_failure).unwrap_or_default().to_owned(),
            ends(dial),
            dial.by.clone(),
        ];
        table.row(Weight::Notable, row);
    }
    table
}

/// What is in force of a policy's own dial and the one of all policies, and whether it is of the latter.
fn first<T>(own: Option<T>, all: Option<T>) -> (Option<T>, bool) {
    let is_of_all = own.is_none() && all.is_some();
    (own.or(all), is_of_all)
}

/// A field as configured, and as dialled where that differs.
fn turned(new: Option<String>, own: String, is_of_all: bool) -> String {
    let text = match new {
        Some(new) if new != own => format!("{own} → {new}"),
        Some(_) | None => own,
    };
    if is_of_all { of_all(text) } else { text }
}

/// Marks what the dial of all policies says.
fn of_all(text: String) -> String {
    format!("{text} ({ALL_POLICIES})")
}

fn ends(dial: &DialEntry) -> String {
    dial.remaining_ms.map_or_else(|| "when cleared".to_owned(), |ms| format!("in {}", duration(ms)))
}

impl Session {
    /// Prints what was done.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn changed(&self, answer: &super::client::Answer<Changed>) -> Result<(), Failure> {
        if self.output.json {
            self.output.json(&answer.raw)
        } else {
            self.output.sentence(&answer.value.done)
        }
    }

    /// Says what a store without Redis cannot promise.
    pub(crate) fn durability(&self, changed: &Changed) {
        if !changed.durable {
            say(
                "This store keeps it in memory: it is gone when the process ends, and other stores know nothing of it.",
            );
        }
    }
}
