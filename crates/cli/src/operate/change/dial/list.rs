//! `quotagate dial list`.

use quotagate_operate::api::{Board, DialEntry};
use quotagate_operate::share_words;
use quotagate_protocol::dials::{ALL_POLICIES, EnforcedShare};

use crate::operate::display::{Table, Weight, ends, mode, on_failure, say, window};
use crate::operate::failure::{Failure, whole};
use crate::operate::session::Session;
use crate::text::{count, number};

/// Shows all policies and their dials.
pub(super) async fn run(session: &Session) -> Result<(), Failure> {
    let answer = session.client.boards().await?;
    let incomplete = answer.value.iter().filter_map(|board| board.incomplete.as_deref());
    if session.output.json {
        session.output.json(&answer.raw)?;
        return whole(incomplete);
    }
    if answer.value.is_empty() {
        say(
            "No filter has reported its policies yet: each does so with its first requests, and then every 5 s.",
        );
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
            say("No dial is set. To set one: `quotagate dial set POLICY --quota N --for 1h`");
        }
    }
    whole(incomplete)
}

/// One row for each policy as it is in force, and one for each other dial, such as the dial of all
/// policies.
fn table(board: &Board) -> Table {
    let mut table = Table::new(
        &["policy", "quota", "window", "mode", "on_failure", "dial ends", "dial by"],
        &[1, 2],
    );
    let dial_of = |name: &str| board.dials.iter().find(|dial| dial.policy == name);
    let all = dial_of(ALL_POLICIES);
    for policy in &board.policies {
        let own = dial_of(&policy.name);
        // Field by field, the policy's own dial overrides the dial of all policies.
        let (new_mode, mode_of_all) =
            first(own.and_then(|own| own.fields.mode), all.and_then(|all| all.fields.mode));
        let (new_failure, failure_of_all) = first(
            own.and_then(|own| own.fields.on_failure),
            all.and_then(|all| all.fields.on_failure),
        );
        let all = all.filter(|_| mode_of_all || failure_of_all);
        let both = |of: fn(&DialEntry) -> String| {
            let own = own.map(of);
            own.into_iter().chain(all.map(of).map(of_all)).collect::<Vec<_>>().join(", ")
        };
        let row = [
            if policy.gone { format!("{} (gone)", policy.name) } else { policy.name.clone() },
            changed(own.and_then(|own| own.fields.quota).map(number), number(policy.quota), false),
            window(&policy.kind, policy.window_s),
            changed(
                new_mode.map(|m| match share_of(own, all) {
                    Some(share) => format!("{}, {}", mode(m), share_words(share)),
                    None => mode(m).to_owned(),
                }),
                mode(policy.mode).to_owned(),
                mode_of_all,
            ),
            changed(
                new_failure.map(|f| on_failure(f).to_owned()),
                on_failure(policy.on_failure).to_owned(),
                failure_of_all,
            ),
            both(|dial| ends(dial.remaining_ms)),
            both(|dial| dial.by.clone()),
        ];
        table.row(if own.or(all).is_some() { Weight::Notable } else { Weight::Plain }, row);
    }
    let known = |name: &str| board.policies.iter().any(|policy| policy.name == name);
    for dial in board.dials.iter().filter(|dial| !known(&dial.policy)) {
        let row = [
            dial.policy.clone(),
            dial.fields.quota.map(number).unwrap_or_default(),
            String::new(),
            dial.fields.mode.map(mode).unwrap_or_default().to_owned(),
            dial.fields.on_failure.map(on_failure).unwrap_or_default().to_owned(),
            ends(dial.remaining_ms),
            dial.by.clone(),
        ];
        table.row(Weight::Notable, row);
    }
    table
}

/// For whom the mode in force refuses although it is shadow.
fn share_of<'d>(
    own: Option<&'d DialEntry>,
    all: Option<&'d DialEntry>,
) -> Option<&'d EnforcedShare> {
    let of_mode = own.filter(|own| own.fields.mode.is_some()).or(all);
    of_mode.and_then(|dial| dial.fields.enforced_for.as_ref())
}

/// The value in force from the policy's own dial and the dial of all policies, and whether it is of
/// the latter.
fn first<T>(own: Option<T>, all: Option<T>) -> (Option<T>, bool) {
    let is_of_all = own.is_none() && all.is_some();
    (own.or(all), is_of_all)
}

/// A field as configured, and as the dial sets it if that differs.
fn changed(new: Option<String>, own: String, is_of_all: bool) -> String {
    let text = match new {
        Some(new) if new != own => format!("{own} → {new}"),
        Some(_) | None => own,
    };
    if is_of_all { of_all(text) } else { text }
}

/// Marks a value of the dial of all policies.
fn of_all(text: String) -> String {
    format!("{text} ({ALL_POLICIES})")
}
