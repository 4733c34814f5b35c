//! `quotagate dial set`.

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hyper::Method;
use quotagate_operate::api::{self, Changed, DialEntry, PolicyInfo, SetDial};
use quotagate_protocol::dials::{ALL_POLICIES, EnforcedShare};
use quotagate_protocol::{Mode, OnFailure};
use quotagate_quota::request::naming::Name;

use crate::operate::change::undo::{self, Before, remark, until};
use crate::operate::display::{mode, on_failure, say};
use crate::operate::failure::Failure;
use crate::operate::session::Session;
use crate::text::{count, duration};
use crate::values::{for_ms, units};

/// The flags of `quotagate dial set`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("dialled").args(["mode", "percent", "only", "quota", "on_failure"]).required(true).multiple(true)))]
pub(super) struct SetDialArgs {
    /// The name of a policy, or * for all
    policy: String,
    /// enforce: refuse requests over the quota; shadow: count and never refuse; off: do neither
    #[arg(long, value_parser = modes())]
    mode: Option<Mode>,
    /// With `*` and --mode enforce: also enforce the policies that are in mode shadow or mark
    #[arg(long, requires = "mode")]
    include_shadow: bool,
    /// Refuse for this share of the partitions, and count the others in mode shadow. It is always
    /// the same share, and a greater one keeps it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    percent: Option<u8>,
    /// Refuse for these parties, and count the others in mode shadow: all partitions that contain
    /// one of them. Repeat it for more
    #[arg(long, value_name = "PARTITION")]
    only: Vec<String>,
    /// The header, cookie or query parameter in --only is no secret, since the policy does not mark
    /// it `secret`
    #[arg(long, requires = "only")]
    plain: bool,
    /// Units per window, in place of the policy's quota, tiers and quota_from; 0 refuses every
    /// request
    #[arg(long, value_name = "N", value_parser = units)]
    quota: Option<u64>,
    /// While the store fails, allow: admit requests uncounted; deny: answer 503; local: each worker
    /// counts for itself
    #[arg(long, value_parser = failures())]
    on_failure: Option<OnFailure>,
    /// The whole dial ends after this time: 30m, 1h, 7d [default: when it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = for_ms)]
    for_ms: Option<u64>,
}

fn modes() -> impl TypedValueParser<Value = Mode> {
    let all = [Mode::Enforce, Mode::Mark, Mode::Shadow, Mode::Off];
    // The parser accepts no other word.
    let of =
        move |word: String| all.into_iter().find(|m| mode(*m) == word).unwrap_or(Mode::Enforce);
    PossibleValuesParser::new(all.map(mode)).map(of)
}

fn failures() -> impl TypedValueParser<Value = OnFailure> {
    let all = [OnFailure::Allow, OnFailure::Deny, OnFailure::Local];
    let of = move |word: String| {
        all.into_iter().find(|f| on_failure(*f) == word).unwrap_or(OnFailure::Allow)
    };
    PossibleValuesParser::new(all.map(on_failure)).map(of)
}

/// Sets a dial, and says what changes and how to undo it.
pub(super) async fn run(args: &SetDialArgs, session: &Session) -> Result<(), Failure> {
    if args.policy == ALL_POLICIES && args.quota.is_some() {
        return Err(Failure::Usage("--quota is for one policy: name it instead of *".to_owned()));
    }
    let share = (args.percent.is_some() || !args.only.is_empty()).then(|| EnforcedShare {
        percent: args.percent.unwrap_or_default(),
        only: args.only.clone(),
    });
    for party in &args.only {
        let name = Name::parse(party, Vec::new()).map_err(|e| Failure::Usage(e.to_string()))?;
        if let Some(label) = name.written_out().filter(|_| !args.plain) {
            return Err(Failure::Usage(format!(
                "the value of {label} may be a secret, and would be sent, logged and shown: write its digest, which \
                 `quotagate top` shows. If the policy does not mark it `secret`, add --plain"
            )));
        }
    }
    let change = SetDial {
        domain: session.client.domain.clone(),
        policy: args.policy.clone(),
        mode: args.mode,
        include_shadow: args.include_shadow,
        enforced_for: share,
        quota: args.quota,
        on_failure: args.on_failure,
        for_ms: args.for_ms,
        by: session.by.clone(),
    };
    if session.output.json {
        let answer = session.client.change(Method::PUT, api::DIALS, &change).await?;
        return session.changed(&answer);
    }
    // An error here is reported by the change, which meets it too.
    let boards = session.client.boards().await.ok().map(|answer| answer.value);
    let answer = session.client.change::<Changed>(Method::PUT, api::DIALS, &change).await?;
    session.changed(&answer)?;
    let domain = &answer.value.domain;
    let board = boards.as_ref().map(|boards| boards.iter().find(|board| board.domain == *domain));
    let dials = board.map(|board| board.into_iter().flat_map(|board| board.dials.iter().cloned()));
    let before = Before::found(dials, |dial| dial.policy == args.policy);
    let mut policies = board.flatten().into_iter().flat_map(|board| &board.policies);
    say_meaning(args, policies.find(|policy| policy.name == args.policy));
    if let Some(remark) = &answer.value.remark {
        say(remark);
    }
    match args.for_ms {
        Some(ms) => say(&format!("The whole dial of {} ends in {}.", args.policy, duration(ms))),
        None => say("The dial stays until it is cleared."),
    }
    session.warn_unless_durable(&answer.value);
    say_undo(args, &before, session);
    Ok(())
}

/// Says what the dial was before, which fields keep their values, and the command that restores it.
fn say_undo(args: &SetDialArgs, before: &Before<DialEntry>, session: &Session) {
    let clear = session.command(&["dial", "clear", &args.policy]);
    let was = match before {
        Before::Was(was) => was,
        Before::Nothing => return say(&format!("Undo it: {clear}")),
        Before::Unknown => {
            return say(&format!(
                "The dial before this change is not known: see `quotagate history`. Clear the whole dial: {clear}"
            ));
        }
    };
    let fields = undo::fields(&was.fields);
    let words = |of: &mut dyn Iterator<Item = &(&str, String, String)>| {
        of.map(|(_, _, words)| words.as_str()).collect::<Vec<_>>().join(", ")
    };
    let sets_mode = args.mode.is_some() || args.percent.is_some() || !args.only.is_empty();
    let is_named = |flag: &str| match flag {
        "--mode" | "--percent" | "--only" => sets_mode,
        "--quota" => args.quota.is_some(),
        _ => args.on_failure.is_some(),
    };
    say(&format!(
        "Before, {} had set {}, {}.",
        was.by,
        words(&mut fields.iter()),
        until(was.remaining_ms)
    ));
    let kept = words(&mut fields.iter().filter(|(flag, ..)| !is_named(flag)));
    if !kept.is_empty() {
        let time = if args.for_ms.is_some() { ", for the same time" } else { "" };
        say(&format!("These fields keep their values{time}: {kept}."));
    }
    let is_new = (sets_mode && was.fields.mode.is_none())
        || (args.quota.is_some() && was.fields.quota.is_none())
        || (args.on_failure.is_some() && was.fields.on_failure.is_none());
    let again = undo::set_dial(session, was, &fields);
    let remark = remark(was.remaining_ms);
    // A field that was not set before can only be cleared with the whole dial.
    let whole = if is_new { format!("{clear} && {again}") } else { again };
    say(&format!("Undo it{remark}: {whole}"));
}

/// Says what changes; of the policy, if it is known.
fn say_meaning(args: &SetDialArgs, policy: Option<&PolicyInfo>) {
    say("Every proxy with traffic applies it within 10 s. What changes:");
    match args.mode {
        Some(Mode::Enforce) => say("  mode: requests over the quota are refused"),
        Some(Mode::Mark) => {
            say("  mode: requests over the quota reach the upstream with x-quotagate-exceeded");
        }
        Some(Mode::Shadow) => say("  mode: requests are counted and none is refused"),
        Some(Mode::Off) => say("  mode: requests are neither counted nor refused"),
        None => {}
    }
    let shares = args.percent.map(|percent| format!("{percent} % of the partitions"));
    let named = (!args.only.is_empty()).then(|| args.only.join(", "));
    let enforced: Vec<_> = shares.into_iter().chain(named).collect();
    if !enforced.is_empty() {
        say(&format!(
            "  mode: requests over the quota are refused for {}; the rest is in mode shadow: counted, never refused",
            enforced.join(" and ")
        ));
    }
    if let Some(quota) = args.quota {
        say(&format!(
            "  quota: {} per window for {}, counted over all proxies; units already used count, overrides stay",
            count(quota, "unit", "units"),
            shared(policy)
        ));
        if policy.is_some_and(|policy| policy.tiers) {
            say(
                "  this replaces the policy's tiers and quota_from: larger quotas from them no longer apply",
            );
        }
    }
    match args.on_failure {
        Some(OnFailure::Allow) => {
            say("  on_failure: while the store fails, requests are admitted uncounted")
        }
        Some(OnFailure::Deny) => say("  on_failure: while the store fails, requests get 503"),
        Some(OnFailure::Local) => {
            say("  on_failure: while the store fails, each worker counts for itself")
        }
        None => {}
    }
}

/// The requests that share one counter of a policy.
fn shared(policy: Option<&PolicyInfo>) -> String {
    match policy.and_then(|policy| policy.partition_by.as_deref()) {
        Some([]) => "all requests together".to_owned(),
        Some(entries) => {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            format!("each {}", names.join(" and "))
        }
        None => "each partition".to_owned(),
    }
}
