//! The counter of a partition in its current window, as the backend has it.

use std::time::Duration;

use quotagate_protocol::Window;
use quotagate_store::control::{Key, KeyState};
use quotagate_store::window::Position;

use crate::Fault;
use crate::api::PolicyInfo;
use crate::control::ControlHandle;

/// How many times a counter is read if its window ends meanwhile.
const TRIES: usize = 3;

/// The current window of a key, and what its counter holds. `now` is about the backend's time: with
/// a wrong one, the counter is read once more.
pub(crate) async fn current(
    control: &ControlHandle,
    key: &str,
    window: &Window,
    now: Duration,
) -> Result<(Position, KeyState), Fault> {
    let (mut position, mut seen) = (Position::at(window, now), KeyState::default());
    for _ in 0..TRIES {
        let key = Key::Counter { key, id: position.id };
        seen = control.get(key).await?;
        let (before, now) = (position.id, Position::at(window, seen.now));
        position = now;
        if now.id == before {
            break;
        }
        seen.value = None;
    }
    Ok((position, seen))
}

/// The units that a counter holds.
pub(crate) fn units(seen: &KeyState) -> Option<u64> {
    seen.value.as_deref()?.parse().ok()
}

/// The windows of one partition.
pub(crate) fn window(policy: &PolicyInfo, partition: &str) -> Option<Window> {
    let window = Window::of(&policy.kind, policy.window_s, 0)?;
    Some(if policy.stagger { window.staggered(partition) } else { window })
}
