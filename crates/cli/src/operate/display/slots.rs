//! Who holds the slots of a concurrency limit, in sentences.

use quotagate_operate::api::{PartyUsage, ProxySlots, SlotsHeld, Usage};

use crate::text::{clean, count, duration, number};

/// Most proxies that are named with the slots that they hold.
pub(crate) const MAX_PROXIES: usize = 8;

/// Who holds the slots of a partition, or waits for them; `None` if nobody does.
pub(crate) fn holders(found: &PartyUsage) -> Option<String> {
    let SlotsHeld { waiting, proxies, left_out } = found.slots.as_ref()?;
    let Usage { policy, partition, .. } = &found.usage;
    let mut parts: Vec<String> = proxies.iter().take(MAX_PROXIES).map(held_by).collect();
    if let Some(more) = proxies.len().checked_sub(MAX_PROXIES).filter(|more| *more > 0) {
        parts.push(format!("{more} more proxies hold or want some"));
    }
    if *left_out > 0 {
        let workers = count(*left_out, "worker", "workers");
        parts.push(format!("{workers} cannot be shown, and no slot is granted while that is so"));
    }
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let proxies = parts.fold(capital(&first), |text, part| format!("{text}; {part}"));
    let slots = if found.usage.used == 1 && *left_out == 0 { "slot" } else { "slots" };
    let waits = match waiting {
        0 => String::new(),
        1 => ", and 1 more is waited for".to_owned(),
        waiting => format!(", and {} more are waited for", number(*waiting)),
    };
    Some(format!("{partition} holds {} {slots} of {policy}{waits}. {proxies}.", used(found)))
}

fn held_by(of: &ProxySlots) -> String {
    let ProxySlots { proxy, held, longest_ms, silent_ms, .. } = of;
    let mut text = format!("proxy {} holds {}", clean(proxy), number(*held));
    if *held > 0 {
        text.push_str(&format!(", the longest for {}", duration(*longest_ms)));
    }
    if *silent_ms > 0 {
        text.push_str(&format!(", and has been silent for {}", duration(*silent_ms)));
    }
    text
}

/// The used units, with a plus if more slots may be held than can be shown.
pub(crate) fn used(found: &PartyUsage) -> String {
    let more = if found.has_unread_slots() { "+" } else { "" };
    format!("{}{more}", number(found.usage.used))
}

/// The text with its first letter as a capital.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
