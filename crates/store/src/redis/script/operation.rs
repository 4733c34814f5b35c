//! What the counter script does, and the command that says so.

use std::time::Duration;

use quotagate_protocol::{Adjustment, Holding, Window};
use redis::{Cmd, RedisWrite, Value};

use super::answer::{self, Outcomes, ScriptAnswer};
use super::{COUNTER, Form};
use crate::store::CheckedReservation;
use crate::window::{CounterId, Position};

/// Most operations of one command: Redis serves no other client meanwhile, for about 0.3 ms.
pub const MAX_OPERATIONS: usize = 32;
/// Numbers in the argument of a reservation, without that of a quota to keep.
const NUMBERS: usize = 8;
/// Numbers that a reservation of slots has beside them.
const SLOT_NUMBERS: usize = 6;

/// What the script does with one counter.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Refunds units.
    Refund(&'a Adjustment),
    /// Charges units.
    Charge(&'a Adjustment),
    /// Reserves units.
    Reserve {
        /// The index of the reservation among those of its call.
        index: usize,
        /// What is reserved.
        reservation: &'a CheckedReservation,
    },
}

/// Where the script finds the override of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideSource {
    /// In its key, beside the counter.
    Undeclared,
    /// In its key, which the command declares: some servers let a script read no other keys. Redis
    /// refuses a command that declares a missing key while the slot of the key migrates.
    Declared,
    /// In the argument: it was read before.
    Argument(Option<Vec<u8>>),
}

/// The operations of one command, whose counters are all on one server.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    /// What the script does, in this order.
    pub operations: &'a [Operation<'a>],
    /// The server's clock, as predicted: units are reserved in the window of this moment.
    pub now: Duration,
}

/// The key of the override of a partition.
pub fn override_key(prefix: &str, key: &str) -> String {
    format!("{prefix}:{key}:override")
}

/// The key of a counter.
pub fn counter_key(prefix: &str, key: &str, id: CounterId) -> String {
    format!("{prefix}:{key}:{id}")
}

/// The key of the quota beside a counter.
pub fn quota_key(counter: &str) -> String {
    format!("{counter}:quota")
}

impl<'a> Operation<'a> {
    /// The counter's key.
    pub fn key(&self) -> &'a str {
        match self {
            Self::Refund(adjustment) | Self::Charge(adjustment) => &adjustment.key,
            Self::Reserve { reservation, .. } => &reservation.key,
        }
    }

    /// Where it counts: a reservation at `now`.
    pub(super) fn position(&self, now: Duration) -> Position {
        match self {
            Self::Refund(Adjustment { kind, window_s, offset_s, window, .. })
            | Self::Charge(Adjustment { kind, window_s, offset_s, window, .. }) => {
                let of = Window::of(kind, *window_s, *offset_s);
                of.map_or_else(Position::default, |of| Position::numbered(&of, *window))
            }
            Self::Reserve { reservation, .. } => Position::at(reservation.window(), now),
        }
    }

    /// Whether a key beside the counter keeps the quota. Slots keep it with each worker.
    fn has_own_quota(&self) -> bool {
        let keeps = |reservation: &CheckedReservation| {
            reservation.own_quota && *reservation.window() != Window::InFlight
        };
        matches!(self, Self::Reserve { reservation, .. } if keeps(reservation))
    }

    /// The key whose override it needs.
    fn overridden(&self) -> Option<&'a str> {
        match self {
            Self::Refund(_) | Self::Charge(_) => None,
            Self::Reserve { reservation, .. } => Some(&reservation.key),
        }
    }
}

impl ScriptCall<'_> {
    /// The command that carries out the operations.
    pub fn command(&self, prefix: &str, form: Form, source: &OverrideSource) -> Cmd {
        let operations = self.operations;
        let keys: usize = operations.iter().map(|operation| operation.key().len()).sum();
        let size = keys + operations.len() * (prefix.len() + NUMBERS * 8 + 24) + 64;
        let mut cmd = Cmd::with_capacity(3 + 2 * operations.len(), size);
        let declared: Vec<_> = match source {
            OverrideSource::Declared => operations.iter().collect(),
            OverrideSource::Undeclared | OverrideSource::Argument(_) => Vec::new(),
        };
        let overrides = declared.iter().filter_map(|operation| operation.overridden());
        let quotas = declared.iter().filter(|operation| operation.has_own_quota());
        COUNTER.call(&mut cmd, form);
        cmd.arg(operations.len() + overrides.clone().count() + quotas.clone().count());
        let positions = operations.iter().map(|operation| operation.position(self.now));
        for (operation, position) in operations.iter().zip(positions.clone()) {
            let (key, counter) = (operation.key(), position.id);
            cmd.write_arg_fmt(format_args!("{prefix}:{key}:{counter}"));
        }
        for key in overrides {
            cmd.arg(override_key(prefix, key));
        }
        for operation in quotas {
            let id = operation.position(self.now).id;
            cmd.arg(quota_key(&counter_key(prefix, operation.key(), id)));
        }
        for (operation, position) in operations.iter().zip(positions) {
            match operation {
                Operation::Refund(refund) => {
                    write_adjustment(&mut cmd, &position, -(refund.units as f64));
                }
                Operation::Charge(charge) => {
                    write_adjustment(&mut cmd, &position, charge.units as f64);
                }
                Operation::Reserve { reservation, .. } => {
                    write_reservation(&mut cmd, prefix, reservation, &position, source);
                }
            }
        }
        cmd
    }

    /// Reads the reply to the command: one answer for each operation, in their order. The server's
    /// clock comes with them if the script ran.
    pub fn read(&self, reply: &Value) -> (Vec<ScriptAnswer>, Option<Duration>) {
        let Some((now, mut outcomes)) = Outcomes::of(reply) else {
            return (vec![answer::of_all(reply); self.operations.len()], None);
        };
        let read = |operation| {
            outcomes.answer(operation, self.now, now).unwrap_or_else(answer::unexpected)
        };
        (self.operations.iter().map(read).collect(), Some(now))
    }
}

fn write_reservation(
    cmd: &mut Cmd,
    prefix: &str,
    reservation: &CheckedReservation,
    position: &Position,
    source: &OverrideSource,
) {
    let (stem, value, keeps) = match source {
        OverrideSource::Undeclared | OverrideSource::Declared => {
            (prefix.len() + reservation.key.len() + 2, &[][..], reservation.own_quota)
        }
        // This node may have no other key of the slot.
        OverrideSource::Argument(value) => (0, value.as_deref().unwrap_or_default(), false),
    };
    let stem = u64::try_from(stem).unwrap_or_default();
    let (first, second) = match position.id {
        CounterId::Sliding(window) => (window.slice_ms(), 0),
        CounterId::Fixed { .. } | CounterId::Calendar(_) => {
            (position.span.start, position.span.end)
        }
        CounterId::InFlight => (0, 0),
    };
    let holding = reservation.holding.as_ref();
    let numbers: [u64; NUMBERS] = [
        first,
        second,
        reservation.quota,
        reservation.want,
        reservation.min,
        holding.map_or(reservation.spare, |holding| length(&holding.worker)),
        u64::from(reservation.count_denied)
            + 2 * u64::from(keeps)
            + 4 * u64::from(outlasts(position))
            + 8 * u64::from(reservation.refunds()),
        stem,
    ];
    let numbers = numbers.map(double);
    let named = double(reservation.named_quota());
    let rest = if keeps && reservation.named_quota() != reservation.quota { &named } else { value };
    if let Some(holding) = holding {
        let slots = slot_numbers(holding);
        let parts = [numbers.as_flattened(), slots.as_flattened(), holding.worker.as_bytes(), rest];
        cmd.write_arg(&parts.concat());
    } else if rest.is_empty() {
        cmd.write_arg(numbers.as_flattened());
    } else {
        cmd.write_arg(&[numbers.as_flattened(), rest].concat());
    }
}

fn slot_numbers(holding: &Holding) -> [[u8; 8]; SLOT_NUMBERS] {
    let Holding { worker: _, serial, held, waiting, waited_ms, max_wait_ms, longest_ms } = holding;
    [serial, held, waiting, waited_ms, max_wait_ms, longest_ms].map(|number| double(*number))
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or_default()
}

fn write_adjustment(cmd: &mut Cmd, position: &Position, units: f64) {
    let units = units.to_le_bytes();
    match position.id {
        CounterId::Sliding(window) => {
            let numbers = [units, double(window.slice_ms()), double(position.number), double(0)];
            cmd.write_arg(numbers.as_flattened());
        }
        CounterId::Fixed { .. } | CounterId::Calendar(_) | CounterId::InFlight => {
            let numbers = [units, double(position.span.start), double(position.span.end)];
            if outlasts(position) {
                cmd.write_arg(&[numbers.as_flattened(), b"+"].concat());
            } else {
                cmd.write_arg(numbers.as_flattened());
            }
        }
    }
}

/// Whether a counter is kept after its window.
fn outlasts(position: &Position) -> bool {
    !position.id.kept_for().is_zero()
}

/// A number as the script reads it: exact, since none is above 2^53 - 1.
const fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::{Kind, Reservation};

    use super::*;

    #[test]
    fn one_command_carries_several_operations() {
        let (kind, window_s, offset_s) = (Kind::Fixed, 60, 0);
        let refund =
            Adjustment { key: "test:q:{a}".into(), kind, window_s, offset_s, window: 6, units: 1 };
        let reservation = CheckedReservation::new(Reservation {
            key: "test:p:{*}".into(),
            window_s: 60,
            quota: 100,
            want: 3,
            min: 1,
            ..Reservation::default()
        });
        let reservation = &reservation.unwrap();
        let operations = [Operation::Refund(&refund), Operation::Reserve { index: 0, reservation }];
        let call = ScriptCall { operations: &operations, now: Duration::from_secs(7 * 60) };
        let text = |source| {
            String::from_utf8_lossy(&call.command("qg", Form::Digest, &source).get_packed_command())
                .into_owned()
        };
        let plain = text(OverrideSource::Undeclared);
        let head = format!("*7\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n2\r\n", COUNTER.digest);
        assert!(plain.starts_with(&head), "{plain}");
        assert!(
            plain.contains("$15\r\nqg:test:q:{a}:6\r\n$15\r\nqg:test:p:{*}:7\r\n$24\r\n"),
            "{plain}"
        );
        assert!(plain.contains("$64\r\n"), "{plain}");
        let known = text(OverrideSource::Argument(Some(b"blocked".to_vec())));
        assert!(known.contains("$71\r\n") && known.ends_with("blocked\r\n"), "{known}");
    }
}
