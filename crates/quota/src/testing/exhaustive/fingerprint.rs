//! What makes two states the same: all that a worker's next steps depend on. Serial numbers count
//! only by their order, the order of a map's entries not at all, and workers are interchangeable.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::node::ModelNode;
use super::{SearchSetup, SearchState};

impl SearchSetup {
    /// Equal for equal states. Two different states collide with a chance of 1 in 2^64.
    pub(super) fn fingerprint(&self, state: &SearchState) -> u64 {
        let SearchState { step, admitted, charged, requests, store, wrong, .. } = state;
        let budgets = (state.faults, state.departures, state.redirects, state.swaps);
        let wrong = wrong.map(|property| property as u8);
        let mut nodes: Vec<u64> = state.nodes.iter().map(|node| node.print).collect();
        nodes.sort_unstable();
        let mut used: Vec<_> =
            store.counters().map(|counter| (counter, store.used(counter))).collect();
        used.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (nodes, step, admitted, charged, requests, budgets, used, wrong).hash(&mut hasher);
        hasher.finish()
    }
}

impl ModelNode {
    /// Records the fingerprint of the node.
    pub(super) fn print(&mut self) {
        // A network keeps no order.
        self.flights.sort_by_cached_key(|flight| (flight.id, format!("{:?}", flight.message)));
        let around =
            (&self.flights, &self.running, &self.redirected, self.ticked, self.is_swapped());
        self.print = of_text(&format!("({}, {around:?})", self.worker.state_text()));
    }
}

/// Hashes the text of `Debug`. Entries between braces count in any order, tickets and calls by the
/// order of their numbers.
fn of_text(text: &str) -> u64 {
    let mut serials: Vec<u64> = Vec::new();
    for name in SERIALS {
        serials.extend(
            text.match_indices(name).map(|(at, _)| number(&text.as_bytes()[at + name.len()..]).0),
        );
    }
    serials.sort_unstable();
    serials.dedup();
    FingerprintReader { text: text.as_bytes(), at: 0, serials }.block(b'\0')
}

const SERIALS: [&str; 2] = ["Ticket(", "CallId("];

struct FingerprintReader<'a> {
    text: &'a [u8],
    at: usize,
    serials: Vec<u64>,
}

impl FingerprintReader<'_> {
    /// Hashes the text before `close`.
    fn block(&mut self, close: u8) -> u64 {
        let (mut entries, mut entry) = (0_u64, 1_u64);
        while let Some(&byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                _ if byte == close => break,
                b',' if close == b'}' => {
                    entries = entries.wrapping_add(finished(entry));
                    entry = 1;
                }
                b'{' => entry = mixed(entry, self.block(b'}')),
                b'[' => entry = mixed(entry, self.block(b']')),
                b'(' if SERIALS
                    .iter()
                    .any(|name| self.text[..self.at].ends_with(name.as_bytes())) =>
                {
                    let (serial, digits) = number(&self.text[self.at..]);
                    self.at += digits;
                    entry = mixed(entry, self.serials.binary_search(&serial).unwrap() as u64);
                }
                b'(' => entry = mixed(entry, self.block(b')')),
                b'"' => entry = mixed(entry, self.quoted()),
                b' ' | b'\n' => {}
                _ => entry = mixed(entry, byte.into()),
            }
        }
        finished(entries.wrapping_add(finished(entry)) ^ u64::from(close))
    }

    fn quoted(&mut self) -> u64 {
        let mut all = 2;
        while let Some(&byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.at += 1,
                _ => all = mixed(all, byte.into()),
            }
        }
        all
    }
}

/// The number that a text begins with, and how many digits it has.
fn number(text: &[u8]) -> (u64, usize) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (text[..digits].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')), digits)
}

const fn mixed(all: u64, next: u64) -> u64 {
    let all = (all.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    all ^ (all >> 32)
}

/// The end of splitmix64.
const fn finished(all: u64) -> u64 {
    let z = (all ^ (all >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn fingerprints_ignore_map_order_and_serial_numbers() {
    for (a, b) in [
        ("{x: 1, y: 2}", "{y: 2, x: 1}"),
        (r#"{"a{,": (1, 2), "b": [3]}"#, r#"{"b": [3], "a{,": (1, 2)}"#),
        ("[Ticket(7), CallId(9)]", "[Ticket(3), CallId(4)]"),
    ] {
        assert_eq!(of_text(a), of_text(b), "{a} {b}");
    }
    for (a, b) in [
        ("[1, 2]", "[2, 1]"),
        ("[12]", "[1, 2]"),
        ("{x: 1, y: 2}", "{x: 2, y: 1}"),
        ("{{a}, {b, c}}", "{{a, b}, {c}}"),
        ("[Ticket(7), CallId(9)]", "[Ticket(9), CallId(7)]"),
        ("[Ticket(7), CallId(9)]", "[Ticket(7), CallId(7)]"),
        (r#"{"a, b"}"#, r#"{"b, a"}"#),
    ] {
        assert_ne!(of_text(a), of_text(b), "{a} {b}");
    }
}
