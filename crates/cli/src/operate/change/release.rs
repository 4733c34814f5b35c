//! `quotagate release`: frees the slots that requests of a party hold.

use hyper::Method;
use quotagate_operate::api::{self, Changed, PartyUsage, Release, SlotsHeld, Usage, UsageReply};

use crate::operate::display::{holders, say};
use crate::operate::failure::{Failure, whole};
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{count, duration};

/// The flags of `quotagate release`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    partition: PartitionArgs,
    /// Only the slots that this proxy holds: its name, as `usage` shows it
    #[arg(long, value_name = "NAME")]
    proxy: Option<String>,
    /// Only the slots of this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Asks for confirmation and frees the slots of each policy that limits requests in flight.
///
/// # Errors
/// When the operator declines or cannot be asked, nobody holds a slot or nobody does any more, or
/// the store does not answer.
pub(crate) async fn run(args: &ReleaseArgs, session: Session) -> Result<(), Failure> {
    super::check_consent(args.yes, "release asks before it frees slots")?;
    let policy = args.policy.as_deref();
    let partition = args.partition.encode(&session, policy.unwrap_or_default()).await?;
    let parameters = [("partition", Some(&*partition))];
    let UsageReply { found, incomplete, .. } =
        session.client.get(api::USAGE, &parameters).await?.value;
    let is_meant = |found: &&PartyUsage| policy.is_none_or(|name| name == found.usage.policy);
    let held: Vec<_> = found
        .iter()
        .filter(is_meant)
        .filter_map(|found| Some((&found.usage, Whose::of(found.slots.as_ref()?, args)?)))
        .collect();
    if held.is_empty() {
        whole(incomplete.as_deref())?;
        let flags = [("--policy", policy), ("--proxy", args.proxy.as_deref())];
        let given =
            flags.iter().filter_map(|(flag, name)| name.map(|name| format!("{flag} {name}")));
        let flags = given.collect::<Vec<_>>().join(" ");
        let others: Vec<_> = found.iter().filter_map(holders).collect();
        others.iter().for_each(|text| say(text));
        return Err(Failure::Refused(if flags.is_empty() || others.is_empty() {
            format!("no slot of {partition} is held: there is nothing to release")
        } else {
            format!("no slot that {partition} holds fits {flags}: there is nothing to release")
        }));
    }
    for (Usage { partition, policy, .. }, Whose { slots, proxies, longest_ms, left_out }) in &held {
        if *slots > 0 {
            say(&format!(
                "{partition} holds {} of {policy} on {}, the longest for {}.",
                count(*slots, "slot", "slots"),
                count(*proxies, "proxy", "proxies"),
                duration(*longest_ms)
            ));
        }
        if *left_out > 0 {
            let workers = count(*left_out, "worker", "workers");
            let whose = if *left_out == 1 { "Its" } else { "Their" };
            say(&format!(
                "{workers} of {policy} cannot be shown. {whose} slots of {partition} are freed, too."
            ));
        }
    }
    if !args.yes {
        say("A proxy that lives takes its slots again within 3 s, so the limit is exceeded until \
             enough of its requests have ended. The slots of a dead proxy are free after 9 s in any case.");
        super::confirm("Release them?")?;
    }
    let (mut released, mut absent) = (false, None);
    for (usage, _) in held {
        let change = Release {
            domain: Some(usage.domain.clone()),
            policy: usage.policy.clone(),
            partition: usage.partition.clone(),
            proxy: args.proxy.clone(),
            by: session.by.clone(),
        };
        match session.client.change::<Changed>(Method::POST, api::RELEASE, &change).await {
            Ok(answer) => {
                session.changed(&answer)?;
                released = true;
            }
            // Its requests have ended meanwhile. The other policies are still to be released.
            Err(Failure::Absent(why)) => {
                if let Some(before) = absent.replace(why) {
                    say(&format!("{before}."));
                }
            }
            Err(failure) => {
                if let Some(why) = absent {
                    say(&format!("{why}."));
                }
                return Err(failure);
            }
        }
    }
    match absent {
        Some(why) if !released => return Err(Failure::Absent(why)),
        Some(why) => say(&format!("{why}.")),
        None => {}
    }
    whole(incomplete.as_deref())
}

/// What is about to be freed of one policy.
struct Whose {
    slots: u64,
    proxies: u64,
    longest_ms: u64,
    /// Workers that are not shown. Without `--proxy`, their slots are freed as well.
    left_out: u64,
}

impl Whose {
    /// `None` if nothing is to be freed.
    fn of(held: &SlotsHeld, args: &ReleaseArgs) -> Option<Self> {
        let is_meant = |name: &str| args.proxy.as_deref().is_none_or(|proxy| proxy == name);
        let left_out = if args.proxy.is_none() { held.left_out } else { 0 };
        let mut whose = Self { slots: 0, proxies: 0, longest_ms: 0, left_out };
        for of in held.proxies.iter().filter(|of| of.held > 0 && is_meant(&of.proxy)) {
            whose.slots = whose.slots.saturating_add(of.held);
            whose.proxies = whose.proxies.saturating_add(1);
            whose.longest_ms = whose.longest_ms.max(of.longest_ms);
        }
        (whose.slots > 0 || whose.left_out > 0).then_some(whose)
    }
}
